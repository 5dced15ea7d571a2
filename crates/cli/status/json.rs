//! How a run is, as one JSON object. Fields are added and never change.

use super::{Leader, Sight};
use dtrain_telemetry::RankStanding;
use dtrain_types::MemberId;
use serde_json::{Value, json};

/// One object. What is not known is `null`.
#[must_use]
pub fn as_json(sight: &Sight) -> Value {
    let Sight { progress: p, leader, place, now } = sight;
    let (leader, pid) = match leader {
        Leader::Here(pid) => ("here", Some(*pid)),
        Leader::Elsewhere => ("elsewhere", None),
        Leader::Nobody => ("nobody", None),
        Leader::Answered => ("answered", None),
    };
    let ranks: Vec<Value> = p.ranks.iter().map(rank).collect();
    let gpus: Vec<Value> = p.gpus.iter().map(|(gpu, now)| json!({ "gpu": gpu, "now": now })).collect();
    let finite = |number: f64| number.is_finite().then_some(number);
    let share = (p.step_seconds > 0.0).then(|| p.waiting_seconds / p.step_seconds);
    json!({
        "run": p.begun.run, "place": place, "state": p.state.word(), "leader": leader, "pid": pid,
        "host": p.begun.host, "time": now, "heard": p.heard_at,
        "step": p.at().0, "steps": p.begun.steps, "epoch": p.epoch.map(|epoch| u64::from(epoch.0) + 1),
        "seconds_left": p.seconds_left(), "samples_per_second": p.speed, "waiting_share": share,
        "loss": finite(p.newest.loss), "learning_rate": p.newest.learning_rate,
        "gradient_norm": p.newest.gradient_norm, "results": p.results, "results_step": p.results_step,
        "generation": p.generation, "alive": p.alive, "wanted": p.wanted, "ranks": ranks,
        "faults": p.faults, "newest_fault": p.newest_fault, "restarts": p.restarts, "recoveries": p.recoveries,
        "recovery_seconds": p.recovery_seconds, "lost_steps": p.lost_steps,
        "checkpoint": p.checkpoint, "failed_checkpoints": p.failed_checkpoints, "gpus": gpus,
        "summary": p.summary,
    })
}

fn rank((member, rank): (&MemberId, &RankStanding)) -> Value {
    json!({
        "member": member, "rank": rank.rank, "host": rank.host, "device": rank.device, "pid": rank.pid,
        "lost": rank.is_lost, "faults": rank.faults, "restarts": rank.restarts, "slow": rank.slow,
    })
}
