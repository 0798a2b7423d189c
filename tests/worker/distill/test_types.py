import torch

from worker.distill.types import SpanPairs, TokenSequence, make_batch

# Two rows of unequal length; the pad id 7 is also a token of the text.
SEQUENCES = [
    TokenSequence(prompt_ids=(5, 7), response_ids=(7, 8, 2), is_ground_truth=True),
    TokenSequence(prompt_ids=(4,), response_ids=(9, 2), is_ground_truth=False),
]


def test_masks_come_from_lengths_and_not_from_the_pad_id():
    batch = make_batch(SEQUENCES, pad_id=7)
    assert batch.input_ids_BT.tolist() == [[5, 7, 7, 8, 2], [4, 9, 2, 7, 7]]
    assert batch.attention_mask_BT.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_response_token_is_predicted_by_the_column_before_it():
    batch = make_batch(SEQUENCES, pad_id=7)
    assert batch.labels_N.tolist() == [7, 8, 2, 9, 2]
    assert batch.predict_index_N.tolist() == [1, 2, 3, 5, 6]
    next_column = batch.input_ids_BT.flatten()[batch.predict_index_N + 1]
    assert next_column.tolist() == batch.labels_N.tolist()


def test_rows_and_ground_truth_flags_follow_the_positions():
    batch = make_batch(SEQUENCES, pad_id=7)
    assert batch.row_N.tolist() == [0, 0, 0, 1, 1]
    assert batch.is_ground_truth_N.tolist() == [True, True, True, False, False]
    assert (batch.num_positions, batch.num_ground_truth_positions) == (5, 3)


def test_predicting_picks_the_hidden_states_of_those_columns():
    hidden_BTD = torch.arange(10.0).reshape(2, 5, 1)
    assert make_batch(SEQUENCES, pad_id=7).predicting(hidden_BTD).flatten().tolist() == [1, 2, 3, 5, 6]


def test_span_sizes_are_counted_in_pairs():
    pairs = SpanPairs(torch.tensor([[0, 1], [1, 2], [3, 4]]), torch.tensor([0, 0, 1]))
    batch = make_batch(SEQUENCES, pairs=pairs, pad_id=7)
    assert (batch.num_pairs, batch.num_spans) == (3, 2)
    assert batch.pair_span_size_P.tolist() == [2, 2, 1]


def test_a_row_without_response_and_a_batch_without_pairs_are_empty_and_not_an_error():
    batch = make_batch([TokenSequence((5,), (), True)], pad_id=7)
    assert (batch.num_positions, batch.num_ground_truth_positions, batch.num_pairs, batch.num_spans) == (0, 0, 0, 0)
    assert batch.pair_index_P2.shape == (0, 2)
    assert batch.pair_span_size_P.shape == (0,)
