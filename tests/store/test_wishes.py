"""The table of style wishes is whole: every label has a wording, and opposites are mutual."""

from store.wishes import CANONICAL, LANGUAGE_LABELS, OPPOSITES, STYLE_LABELS, language_label


def test_every_label_has_one_canonical_wording_and_something_that_withdraws_it() -> None:
    labels = {*STYLE_LABELS, *LANGUAGE_LABELS}
    assert set(CANONICAL) == labels
    assert set(OPPOSITES) == labels
    assert len(set(CANONICAL.values())) == len(labels)


def test_opposites_are_mutual_and_no_label_is_its_own() -> None:
    for label, opposites in OPPOSITES.items():
        assert opposites
        assert label not in opposites
        assert all(label in OPPOSITES[other] for other in opposites)


def test_every_other_language_replaces_a_language() -> None:
    assert language_label("es") == "spanish"
    assert language_label("fr") == "language:fr"
    assert {"english", "language:fr"} <= set(OPPOSITES["spanish"])
