"""A quick proof that the node and the images work: one service pod, one Spark driver with one executor, under restricted Pod
Security."""
