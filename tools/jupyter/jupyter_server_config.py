"The settings of `make lab`."
import warnings

c = get_config()  # noqa: F821


def as_committed(model, path, **kwargs):
    "What JupyterLab adds to a notebook on opening it isn't saved: the file stays as it was."
    if model["type"] == "notebook":
        metadata = model["content"]["metadata"]
        metadata.pop("language_info", None)
        if "kernelspec" in metadata: metadata["kernelspec"]["display_name"] = "python3"
        for cell in model["content"]["cells"]: cell["metadata"].pop("collapsed", None)


# Jupyter reads this file twice, and warns that the second hook replaces the first.
warnings.filterwarnings("ignore", "Overriding existing pre_save_hook")
c.FileContentsManager.pre_save_hook = as_committed
