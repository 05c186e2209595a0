"""Jobs on Ray: the bits of one process, and each row once where actors, nodes and drivers die."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from hf_bert_impl.cli import main
from hf_bert_impl.distributed import EmbedTexts, on_ray
from hf_bert_impl.distributed.run import run_job
from hf_bert_impl.errors import InputError
from tests.distributed.cases import Hard, assert_vectors, rejects
from tests.support.checkpoints import TEXTS

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="class")
def ray():
    library = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    yield library
    library.shutdown()


@pytest.fixture(scope="class")
def running(ray):
    """Ray as a program has started it: on two processors."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    return ray


def test_actors_and_a_node_die(ray, job, tmp_path, expected):
    """Ray retries by itself; every row is written once, with the same bits."""
    from ray.cluster_utils import Cluster

    pids = tmp_path / "pids"
    pids.mkdir()
    slow = {**job.options, "pids": str(pids), "seconds": 0.3}
    here = dataclasses.replace(job, task=Hard, options=slow, part_rows=2)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    second = cluster.add_node(num_cpus=2)
    draw = random.Random(3)

    def disturb():
        for number in range(4):
            time.sleep(0.5 + draw.random())
            if number == 2:
                cluster.remove_node(second)
                continue
            own = {str(os.getpid())}  # which has loaded the task too
            for file in [file for file in pids.iterdir() if file.name not in own][-1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.name), signal.SIGKILL)
                file.unlink()

    try:
        ray.init(address=cluster.address, log_to_driver=False)
        thread = threading.Thread(target=disturb)
        thread.start()
        run_job(here, ray=(3, cluster.address))
        thread.join()
        assert_vectors(here.output, expected)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_an_address_that_refuses(ray, job):
    with pytest.raises(InputError, match=r"Ray cannot be reached at '127.0.0.1:1'"):
        run_job(job, ray=(1, "127.0.0.1:1"))


def workers_of(driver):
    """The processes that read, compute or write, without Ray's own processes."""
    found = []
    for child in psutil.Process(driver.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if child.name().startswith("ray::") and not child.name().endswith("Agent"):
                found.append(child)
    return found


@pytest.mark.timeout(900)  # two starts of Ray, slow on a cold disk
def test_the_driver_is_killed(ray, job, rows, expected, capsys):
    """The same command computes missing rows only, and stops the Ray that it has started."""
    lines = rows.read_text().splitlines()
    lines[7] = json.dumps({"text": None, "id": "t7"})
    lines[30] = json.dumps({"text": "again", "id": "t3"})
    rows.write_text("\n".join(lines) + "\n")
    run = "import sys; from hf_bert_impl.cli import main; sys.exit(main())"
    command = [
        *(sys.executable, "-c", run, "embed", job.options["model"], str(rows)),
        *("-o", str(job.output), "--engine", "ray", "--workers", "2", "--column", "text"),
        *("--id-column", "id", "--part-size", "1", "--json"),
    ]
    own = {name: value for name, value in os.environ.items() if name != "RAY_worker_niceness"}
    process = subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL)
    while len(list(job.output.glob("*.parquet"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    workers = workers_of(process)
    assert {worker.nice() for worker in workers} == {os.nice(0)}
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Workers may outlive their driver for a moment, and write.
    _, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive
    checkpoint = job.output.with_name(f"{job.output.name}.checkpoint")
    assert list(checkpoint.glob("*.parquet"))
    assert main(command[3:]) == 0
    assert not ray.is_initialized()
    report = json.loads(capsys.readouterr().out)
    assert report["resumed_from"] > 0
    assert report["resumed_from"] + report["rows"] == len(TEXTS) - 2
    assert [entry["id"] for entry in rejects(job.output)] == ["t7", "t3"]
    assert_vectors(job.output, expected, 7, 30)
    assert not checkpoint.exists()


class TestOnRayThatRuns:
    """On a running Ray, which is neither started nor stopped."""

    def test_on_a_data_set_of_ray(self, running, models, expected):
        """Plain `map_batches`; an actor computes with as many threads as it has CPUs."""
        data = running.data.from_items([{"id": n, "text": text} for n, text in enumerate(TEXTS)])
        data = data.map_batches(
            EmbedTexts,
            fn_constructor_args=(models("BertModel"),),
            batch_size=10,
            batch_format="pyarrow",
            num_cpus=1,
            concurrency=2,
        ).map_batches(lambda batch: batch)
        found = sorted(data.take_all(), key=lambda row: row["id"])
        assert np.array_equal(np.array([row["vector"] for row in found]), expected)

    def test_threads_of_an_actor(self, running, models):
        import torch

        def threads(model):
            EmbedTexts(model)
            return torch.get_num_threads()

        remote = running.remote(threads)
        for cpus, expected in ((2, 2), (0.5, 1)):  # in one process, which takes long to import
            asked = remote.options(num_cpus=cpus).remote(models("BertModel"))
            assert running.get(asked) == expected

    def test_a_row_that_kills_its_workers(self, running, job, monkeypatch):
        """The job ends, and a run that does not die on it computes the rest."""
        monkeypatch.setattr(on_ray, "RETRIES", 1)
        deadly = {**job.options, "deadly": TEXTS[20]}
        here = dataclasses.replace(job, task=Hard, options=deadly)
        with pytest.raises(InputError, match="died 2 times"):
            run_job(here, ray=(2, None))
        assert not (here.output / "manifest.json").exists()
