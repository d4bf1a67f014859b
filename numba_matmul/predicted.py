"What the model says of the kernels of the course, written by tools/predictions.py."

PREDICTED = {}
