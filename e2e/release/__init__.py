"""A release: wheel, packaged chart, archives of the images, bills of materials and checksums in one folder, tried from these
files alone."""
