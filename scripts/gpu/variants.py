"""The forms of the program that the acceptance runs beside each other: a table of names and sets.

The sections parity, gradients, networks, resnet50 and gpt2 run each model once with the `--set`
words of every row, in this order. The first row is the form to which the others are compared. To
add a form, add a row.
"""

VARIANTS = [("", ())]


def label(name, variant):
    """Returns the name of a run in a variant."""
    return "%s, %s" % (name, variant) if variant else name
