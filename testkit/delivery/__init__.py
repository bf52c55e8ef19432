"""What users get, made and used as they do: the wheel, the image, the console blocks."""
