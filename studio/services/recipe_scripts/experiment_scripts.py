"""The script of a stored experiment: which model it names."""

from sqlmodel import Session

from studio.db.tables import Experiment
from studio.services.models import models
from studio.services.recipe_scripts import scripts


def of_experiment(db: Session, experiment: Experiment) -> str:
    """Return the script that trains an experiment's recipe.

    A model of the studio is named as on the hub, if it is from there; else by its name here, and
    its folder has to be given.

    Raises:
        InvalidError: TRL alone cannot train the same.

    """
    listed = models.find_by_name(db, experiment.recipe.base_model)
    name = listed.repo if listed and listed.repo else experiment.recipe.base_model
    return scripts.build(experiment.recipe, name)
