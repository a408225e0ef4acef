"""Results as text, JSON, CSV and pages."""
