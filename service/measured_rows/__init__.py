"""Rows measured elsewhere, as CSV text, become the trials of a finished study. Pure: no HTTP, no database.

The text is UTF-8 (a byte order mark is passed over), separated by commas, quoted where needed (RFC 4180), with a
header. An empty field means "not known"; NaN and infinity are refused. There is one row per run, or per (run, epoch),
or per (run, epoch, rank). The columns, in any order (* needed):

    run*                            name of the run: rows with one name are one training
    world_size*                     number of workers, one device each
    nodes                           number of machines they were on
    train_micro_batch_size_per_gpu  b   images per worker and forward pass
    gradient_accumulation_steps     g   forward and backward passes per optimizer step
    train_batch_size                B   images per optimizer step over all workers
    zero_stage                      0 to 3
    precision                       fp32, tf32, bf16 or fp16
    placement                       a name for where the workers were, e.g. intra-node
    model, dataset                  names
    dataset_fraction                above 0, at most 1: of the data set; with mode weak of the data set per worker
    device                          one name for all ranks, or one for each rank: "3 x RTX 3070; Tesla P4"; in a row
                                    with a rank that rank's
    rank                            0 to world_size - 1. Without a rank the row holds the mean over ranks
    epoch                           from 1. Without an epoch the row holds the mean over the run
    epoch_seconds                   seconds of one whole epoch of training
    step_seconds                    mean seconds of one optimizer step
    steps_per_epoch                 optimizer steps in an epoch
    compute_seconds                 seconds per optimizer step spent in computing
    communication_seconds           seconds per optimizer step in the exchange of gradients, waiting for others included
    loss, accuracy                  in training; the accuracy is a share from 0 to 1

What follows from them:

- B = b g W. Two are enough; with b alone g is 1, as in a spec, and one of b and B is needed. What contradicts is
  refused.
- An epoch's seconds are the row without a rank where there is one, else the mean over the ranks that have a row. The
  run's are the mean over its epochs (the paper's way), and without the first epoch apart.
- step seconds are `step_seconds`, else epoch seconds / `steps_per_epoch`; epoch seconds that are not given are step
  seconds x steps per epoch (source "derived").
- images per second = B / step seconds, so B x steps / epoch seconds where no step time is given: a partial last batch
  counts as a full one, and each row's notes say which it was.
- Runs that have the same parameters are the repeats 0, 1, 2 of one point, in the order of the file. They must have run
  on the same hardware: `placement` tells runs on other hardware apart.
- A run's row has `compute_seconds` and `communication_seconds` where a row without a rank gives them, or all ranks do
  (then their mean); what is known of some ranks only stays with those ranks.

Every field that is wrong is named by line and column, up to a bound, and then there is no study at all.
"""

from service.measured_rows.errors import RowsInvalid
from service.measured_rows.study import MeasuredStudy, read_measured_rows
from service.measured_rows.trials import MeasuredEpoch, MeasuredRank, MeasuredTrial

__all__ = ["MeasuredEpoch", "MeasuredRank", "MeasuredStudy", "MeasuredTrial", "RowsInvalid", "read_measured_rows"]
