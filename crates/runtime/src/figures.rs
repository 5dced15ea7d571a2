//! Between the words of the data, those of the engine and those of a step: batches on their way in, figures on their way out.

use dtrain_engine::{BatchFigures, BatchView, EvaluationCounts, Inputs, OwnCounts, Ranking, Targets};
use dtrain_rounds::in_tree_order;
use dtrain_types::{MicroBatch, Trailer};

/// The trailers of micro-batches from `first` on, added in tree order.
pub fn sum_of_trailers(figures: &[BatchFigures], checks: &[u64], first: u32, stop: u32) -> Trailer {
    let all = (first..).zip(figures.iter().zip(checks));
    in_tree_order(all.map(|(m, (figures, check))| Trailer { stop, ..figures.trailer(MicroBatch(m), *check) }))
}

/// A batch as a replica takes it.
pub fn lend(batch: &dtrain_data::Batch) -> BatchView<'_> {
    use dtrain_data::Elements;
    BatchView {
        rows: batch.rows(),
        inputs: match batch.inputs() {
            Elements::F32(values) => Inputs::Values(values),
            Elements::U32(tokens) => Inputs::Tokens(tokens),
        },
        targets: match (batch.mixed_classes(), batch.targets()) {
            (Some(mixed), _) => Targets::Mixed(mixed),
            (None, Elements::F32(values)) => Targets::Values(values),
            (None, Elements::U32(classes)) => Targets::Classes(classes),
        },
    }
}

/// The counts of all classes as one list, and the order of their samples behind them; where values are predicted, the sum of absolute
/// errors; of a program with metrics of its own, those.
pub fn flatten(counts: &EvaluationCounts) -> Vec<u64> {
    if !counts.own.is_empty() {
        return counts.own.iter().flat_map(OwnCounts::words).collect();
    }
    if counts.classes() == 0 {
        return counts.absolute_errors.words();
    }
    let order = counts.ranking.as_ref().map_or(&[][..], Ranking::words);
    [&counts.true_positive, &counts.false_positive, &counts.false_negative, order].concat()
}
