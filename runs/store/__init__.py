"""Small files in a folder or in a bucket, with create-if-absent and compare-and-swap; and their format."""
