"""The decode step: model shapes, kernel lists, GPU figures, the estimate."""
