"""Chat templates of LMDeploy."""
