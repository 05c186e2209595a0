"""google-research/bert: name-based TensorFlow 1 checkpoints.

Names as in modeling.py, run_pretraining.py, run_classifier.py and run_squad.py of
https://github.com/google-research/bert. Kernels are (in, out); the weights of the heads are plain
variables, (labels, in). The masked-LM decoder is the word embeddings.
"""

from ..rules import GAMMA, KERNEL, Ignore, Rule, Table, module_rules
from . import names


def _path(name: str) -> str:
    return name.replace("layer.{layer}", "layer_{layer}").replace(".", "/")


RULES = (
    *(Rule(_path(name), f"{name}.weight") for name in names.EMBEDDINGS),
    *module_rules({_path(name): name for name in names.LINEARS}, KERNEL),
    *module_rules({_path(name): name for name in names.NORMS}, GAMMA),
    Rule("cls/predictions/output_bias", names.SCORES_BIAS),
    Rule("cls/seq_relationship/output_weights", f"{names.NEXT_SENTENCE}.weight"),
    Rule("cls/seq_relationship/output_bias", f"{names.NEXT_SENTENCE}.bias"),
    # run_classifier.py creates these two outside any scope.
    Rule("output_weights", f"{names.CLASSIFIER}.weight"),
    Rule("output_bias", f"{names.CLASSIFIER}.bias"),
    Rule("cls/squad/output_weights", f"{names.ANSWERS}.weight"),
    Rule("cls/squad/output_bias", f"{names.ANSWERS}.bias"),
)

IGNORES = (
    Ignore("[{any}/]{step}", "count of training steps"),
    Ignore("[{any}/]{power}", "power of Adam's decay rate after so many steps"),
    Ignore("[{any}/]{scale}", "loss scaling of half-precision training"),
    Ignore("[{any}/]learning_rate", "learning rate"),
)

GOOGLE_TF1 = Table(
    software="google-research/bert (TensorFlow 1)",
    tanh_gelu=True,
    rules=RULES,
    ignores=IGNORES,
    slots={
        "any": ".+",
        "step": "global_step|local_step",
        "power": "beta[12]_power(?:_[0-9]+)?",
        "scale": "(?:current_)?loss_scale|good_steps|bad_steps|batch_finite",
    },
)
