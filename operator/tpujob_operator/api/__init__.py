"""The API as the user sees it: models, CRD, conditions and reasons."""
