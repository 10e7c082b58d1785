"""Chat templates in LMDeploy's form."""
