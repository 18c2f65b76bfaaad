"""Operations on the whole store or on this process: init, run, doctor, health, maintain."""
