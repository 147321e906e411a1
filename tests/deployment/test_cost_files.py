import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.deployment.cost_files import read_costs

NAMES = ("oak", "ash, white", "elm")


@given(rows=st.permutations(range(3)), columns=st.permutations(range(4)))
def test_any_order_of_rows_and_columns_is_the_same_matrix(tmp_path_factory, rows, columns):
    answers = (*NAMES, "ask")
    matrix = torch.arange(12.0).reshape(3, 4).double() + 20
    matrix[range(3), range(3)] = 0
    path = tmp_path_factory.mktemp("costs") / "costs.csv"
    quoted = [f'"{name}"' for name in answers]
    lines = [",".join(["class", *(quoted[place] for place in columns)])]
    lines += [",".join([quoted[row], *(str(float(matrix[row, place])) for place in columns)]) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    found = read_costs(path, NAMES)
    assert found.answers == answers
    assert torch.equal(found.costs, matrix)


def test_two_columns_are_what_missing_each_class_costs(tmp_path):
    (tmp_path / "costs.csv").write_text("Klasse;Kosten\nelm;3\noak;1\nash, white;2\n")
    found = read_costs(tmp_path / "costs.csv", NAMES)
    assert found.answers is None
    assert found.costs.tolist() == [1, 2, 3]


def test_commas_are_decimal_where_semicolons_separate(tmp_path):
    (tmp_path / "costs.csv").write_text("class;cost\nelm;0,25\noak;1\nash, white;2.5\n")
    assert read_costs(tmp_path / "costs.csv", NAMES).costs.tolist() == [1, 2.5, 0.25]


def test_answers_need_not_be_classes(tmp_path):
    (tmp_path / "costs.csv").write_text("class;treat;wait\nelm;3;0\noak;1;1\nash, white;2;9\n")
    found = read_costs(tmp_path / "costs.csv", NAMES)
    assert found.answers == ("treat", "wait")
    assert found.costs.tolist() == [[1, 1], [2, 9], [3, 0]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no costs; write the headings class,cost"),
        ("class\noak\n", "has no costs; write the headings class,cost"),
        ("class;a;a\n", "line 1: the heading 'a' is empty or there twice"),
        ("class;cost\noak;1\noak;1\n", "line 3: class 'oak' has costs already"),
        ('class;cost\n"oak', "line 2: unexpected end of data"),
        ("class;cost\noak;0\nelm;0\nash, white;0\n", "all costs are zero"),
        ("class;cost\nelm;0\n\nash, white;-2\noak;1\n", "line 4 ('ash, white'): missing it costs -2"),
        ("class;cost\nelm;x\n", "line 2, class 'elm': 'x' is not a number"),
        ("class;elm;oak\nelm;0;1\noak;1;inf\nash, white;1;1\n", "line 3 ('oak'), answer 'oak' is inf"),
        ("class;elm;oak\nelm;0;1\noak;1;3\nash, white;1;1\n", "line 3 ('oak'): the right answer costs 3, more than 1"),
    ],
)
def test_mistakes_name_the_line(tmp_path, text, sentence):
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(UserError) as error:
        read_costs(tmp_path / "costs.csv", NAMES)
    assert sentence in str(error.value)
    assert "costs.csv" in str(error.value)
