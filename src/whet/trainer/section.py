"""Define what the tables of the configuration of `whet train` have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Hold one table of the configuration. Keys that it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
