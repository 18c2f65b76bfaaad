"""Operations on tasks."""

from interlock.faces.operations.plan import IMPORT

OPERATIONS = (IMPORT,)
