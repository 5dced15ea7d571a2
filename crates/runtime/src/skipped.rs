//! What is said of a step that changed nothing, because the gradient of its scaled loss was not finite.

use dtrain_engine::UpdateInfo;
use dtrain_types::{Rank, Step};

/// Says it once, where all ranks make the same step.
pub fn tell(rank: Rank, step: Step, info: &UpdateInfo) {
    if let (Rank(0), true, Some(scale)) = (rank, info.skipped(), info.loss_scale) {
        let loss_scale = scale.factor;
        tracing::info!(%step, loss_scale, "the gradient was not finite: the step is skipped, the scale halved");
    }
}
