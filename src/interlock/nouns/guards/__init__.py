"""Guards: conditions that must hold before work moves on."""
