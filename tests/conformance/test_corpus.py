"""The recorded corpus: the embedded broker does what a real 0.7.2 broker did.

`test_case_NN` has the variants of acceptance case NN of the specification (section 10); `kafka07/README.md` says how
they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .replay import Case, read_cases

CORPUS = Path(__file__).parent / "kafka07"

AsRecorded = Callable[[Case], None]


def cases(name: str) -> list[Case]:
    return [case for case in read_cases(CORPUS / name) if case is not None]


ACCEPTANCE, RANDOM = cases("acceptance.jsonl.gz"), cases("random_shared.jsonl.gz")


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """Return a mark: a run has each of these cases, with one of the engines."""
    one_engine = pytest.mark.sampled(2, "engine")
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=one_engine) for case in cases])


def variants(number: int) -> pytest.MarkDecorator:
    return each([case for case in ACCEPTANCE if case.id.startswith(f"A{number:02}.")])


def test_the_corpus_is_whole() -> None:
    assert (len(ACCEPTANCE), len(RANDOM)) == (414, 286)


@each(RANDOM)
def test_random_case(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(1)
def test_case_01_produce_is_silent_and_the_next_fetch_on_the_connection_is_answered_with_the_set(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(2)
def test_case_02_fetch_from_0_gives_the_whole_log(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(3)
def test_case_03_fetch_at_the_high_water_mark_is_empty_and_outside_the_log_is_code_1(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(4)
def test_case_04_fetch_gives_at_most_max_size_bytes_down_to_a_fragment(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(5)
def test_case_05_fetch_in_the_middle_of_a_message_gives_raw_bytes(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(6)
def test_case_06_partition_out_of_range_is_code_3_for_fetch_and_closes_offsets(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(7)
def test_case_07_fetch_of_an_unknown_topic_is_empty_and_creates_nothing(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(8)
def test_case_08_illegal_topic_names_are_code_minus_1_and_odd_legal_ones_work(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(9)
def test_case_09_illegal_topic_closes_offsets_and_produce(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(10)
def test_case_10_multifetch_of_nothing_and_of_failing_parts(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(11)
def test_case_11_multifetch_parts_have_their_own_codes_and_the_outer_one_is_0(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(12)
def test_case_12_multifetch_with_a_wrong_count_closes(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(13)
def test_case_13_unknown_types_and_impossible_sizes_close_and_the_largest_size_waits(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(14)
def test_case_14_pipelined_and_split_requests_are_answered_in_order(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(15)
def test_case_15_half_closed_client_gets_its_answer_then_the_end(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(16)
def test_case_16_negative_max_size_breaks_the_answer_off_except_at_the_high_water_mark(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(17)
def test_case_17_bad_crc_closes_stores_nothing_and_creates_the_topic(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(18)
def test_case_18_too_large_payload_drops_the_set_silently_and_the_limit_itself_is_stored(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(19)
def test_case_19_cut_tails_are_left_out(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(20)
def test_case_20_cut_first_entry_closes_and_three_stray_bytes_are_nothing(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(21)
def test_case_21_unknown_magic_codec_or_junk_closes_and_upper_attribute_bits_do_not_matter(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(22)
def test_case_22_empty_payload_is_stored_in_10_bytes(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(23)
def test_case_23_magic_0_and_1_mix_and_come_back_identical(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(24)
def test_case_24_partition_minus_1_is_any_partition_and_minus_2_closes(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(25)
def test_case_25_multiproduce_stores_what_comes_before_a_failure_and_skips_what_is_too_large(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(26)
def test_case_26_unflushed_data_is_invisible_until_count_or_time_flushes_it(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(27)
def test_case_27_segments_roll_when_larger_than_the_limit_and_a_fetch_ends_at_their_border(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(28)
def test_case_28_offsets_by_time_and_number(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(29)
def test_case_29_offsets_by_the_times_of_segment_files(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(30)
def test_case_30_offsets_of_an_unknown_topic(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(31)
def test_case_31_retention_deletes_a_prefix_and_never_starts_again_at_0(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(32)
def test_case_32_restart_after_kill_truncates_garbage_and_after_clean_stop_serves_it(
    case: Case, as_recorded: AsRecorded
) -> None:
    as_recorded(case)


@variants(33)
def test_case_33_registration_of_broker_and_topics(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)


@variants(34)
def test_case_34_broker_id_conflict_and_session_expiry(case: Case, as_recorded: AsRecorded) -> None:
    as_recorded(case)
