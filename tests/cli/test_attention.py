"""`hf-bert attention`: pages and pictures, whose titles are no formulas."""


def test_page_and_picture(hf_bert, save_tiny, tmp_path):
    model, file, picture = save_tiny(), tmp_path / "page.html", tmp_path / "picture.pdf"
    result = hf_bert("attention", model, "the river rose", "nice", "-o", file)
    assert (result.status, result.err) == (0, "")
    assert result.out.replace("\n", "") == f"{file}: tokens 7, layers 2, heads 10"
    page = file.read_text(encoding="utf-8")
    assert '"texts": ["the river rose", "nice"]' in page and '"model": "BertForMaskedLM"' in page
    options = ("--layers", "1-1", "--heads", " 2-4 , 0", "--quiet", "--plot", picture)
    result = hf_bert("attention", model, "a $_{$ b", "-o", file, "--overwrite", *options)
    assert (result.status, result.out) == (0, "")
    assert '"layers": [{"layer": 1, "heads": [0, 2, 3, 4], ' in file.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"%PDF")
