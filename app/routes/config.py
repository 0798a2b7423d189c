"""/v1/config: what a job description may say. Knows the config class and its recipes, nothing else."""

from __future__ import annotations

from fastapi import APIRouter

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from app.core.schemas import ConfigSchemaOut

router = APIRouter(prefix="/v1/config", tags=["config"])


@router.get("/schema")
def read_config_schema() -> ConfigSchemaOut:
    """JSON Schema of `config` with every default, and the recipes that fill what is left out."""
    return ConfigSchemaOut(json_schema=DistillConfig.model_json_schema(), recipes=RECIPES)
