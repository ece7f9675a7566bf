"""Rows of two runs that are the same, though a change of the program renamed or moved them."""

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.comparison.matching import matched, same_files, skeleton


def partners(kind, base, new):
    rows = matched(kind, base, new)
    return (
        {base[old]: new[row] for old, row in rows if old >= 0 and row >= 0},
        [base[old] for old, row in rows if row < 0],
        [new[row] for old, row in rows if old < 0],
    )


def test_lines_are_followed_by_their_text_in_their_function():
    base = [("a.py", "f", 10, "x = g(x)"), ("a.py", "f", 11, "y = h(x)"), ("a.py", "k", 20, "return z")]
    new = [("a.py", "f", 12, "x = g(x)"), ("a.py", "f", 13, "w = new(x)"), ("a.py", "f", 14, "y = h(x)")]
    found, gone, added = partners("line", base, new)
    assert found == {base[0]: new[0], base[1]: new[2]}
    assert gone == [base[2]]
    assert added == [new[1]]


def test_a_line_that_was_edited_in_place_is_the_same_line():
    base, new = [("a.py", "f", 10, "x.pow(2)")], [("a.py", "f", 10, "x.pow(3)")]
    assert partners("line", base, new)[0] == {base[0]: new[0]}


def test_equal_lines_of_a_function_stay_in_order():
    base = [("a.py", "f", 10, "x = g(x)"), ("a.py", "f", 11, "x = g(x)")]
    new = [("a.py", "f", 20, "x = g(x)"), ("a.py", "f", 21, "x = g(x)")]
    assert partners("line", base, new)[0] == dict(zip(base, new, strict=True))


def test_a_line_that_moved_to_another_function_of_its_file_is_followed():
    base, new = [("a.py", "f", 10, "x = g(x)")], [("a.py", "Net.helper", 50, "x = g(x)")]
    assert partners("line", base, new)[0] == {base[0]: new[0]}


def test_kernels_of_other_tiles_or_template_arguments_are_the_same_kernel():
    base = [
        ("ampere_sgemm_128x64_tn",),
        ("void softmax<float, 8, true>(float*)",),
        ("triton_poi_fused_add_0",),
    ]
    new = [("triton_poi_fused_add_3",), ("ampere_sgemm_64x64_tn",), ("void softmax<c10::Half, 16>(int)",)]
    found, gone, added = partners("kernel", base, new)
    assert found == {base[0]: new[1], base[1]: new[2], base[2]: new[0]}
    assert (gone, added) == ([], [])
    assert skeleton("ampere_sgemm_128x64_tn") == skeleton("ampere_sgemm_64x32_tn")


def test_operators_are_matched_by_sizes_then_by_module():
    base = [("aten::addmm", "[8, 4]", "fc"), ("aten::relu", "[8]", "act"), ("aten::mul", "[8]", "")]
    new = [("aten::addmm", "[16, 4]", "fc"), ("aten::relu", "[8]", "act.inner"), ("aten::div", "[8]", "")]
    found, gone, added = partners("operator", base, new)
    assert found == {base[0]: new[0], base[1]: new[1]}
    assert (gone, added) == ([base[2]], [new[2]])


def test_modules_of_another_class_at_a_path_are_the_same_place():
    assert partners("module", [("act", "ReLU")], [("act", "GELU")])[0] == {("act", "ReLU"): ("act", "GELU")}


def test_a_checkout_in_another_folder_has_the_same_files():
    base = ["/old/repo/train.py", "/old/repo/model/net.py", "/old/repo/data/net.py"]
    new = ["/new/train.py", "/new/data/net.py", "/new/model/net.py", "/new/added.py"]
    assert same_files(base, new) == {
        "/new/train.py": "/old/repo/train.py",
        "/new/data/net.py": "/old/repo/data/net.py",
        "/new/model/net.py": "/old/repo/model/net.py",
        "/new/added.py": "/new/added.py",
    }


KEYS = st.lists(st.tuples(*(st.sampled_from("ab") for _ in range(3))), max_size=12)


@given(base=KEYS, new=KEYS)
def test_every_row_is_matched_once_or_left(base, new):
    rows = matched("operator", base, new)
    assert sorted(old for old, _ in rows if old >= 0) == list(range(len(base)))
    assert sorted(row for _, row in rows if row >= 0) == list(range(len(new)))
    # Nothing that has an equal partner is left over.
    assert not {base[old] for old, row in rows if row < 0} & {new[row] for old, row in rows if old < 0}
