from __future__ import annotations

from ui.config_schema import ConfigSchema


def test_defaults_by_path_and_kind(schema: ConfigSchema) -> None:
    assert schema.default("recipe") == "mgsr"
    assert schema.default("training.max_steps") == 1000
    assert schema.default("sampling.phi_start", kind="adaptive_off_policy") == 0.5
    assert schema.default("student.layers") is None


def test_a_field_exists_only_in_its_kind(schema: ConfigSchema) -> None:
    assert schema.has("sampling.phi_start", kind="adaptive_off_policy")
    assert not schema.has("sampling.phi_start", kind="ground_truth")
    assert not schema.has("training.nothing")
    assert not schema.has("nothing.at_all")


def test_kinds_of_a_union_and_of_a_list_of_unions(schema: ConfigSchema) -> None:
    assert list(schema.kinds("student")) == ["from_teacher", "checkpoint"]
    assert {"sft", "dac_kl", "span"} <= set(schema.kinds("losses"))
    assert schema.kinds("losses")["dac_kl"].startswith("Distribution adaptive")


def test_help_has_no_marks_for_method_readers(schema: ConfigSchema) -> None:
    assert schema.help("sampling.temperature").startswith("T = 1")
    assert schema.help("training.learning_rate") == ""


def test_fit(schema: ConfigSchema) -> None:
    eight = schema.fit("training.batch_size", 8.0)
    assert (eight, type(eight)) == (8, int)
    assert schema.fit("training.batch_size", 8.5) == 8.5
    assert type(schema.fit("training.learning_rate", 1.0)) is float
    assert schema.fit("teacher.model", None) == ""
    assert schema.fit("training.seed", None) is None
