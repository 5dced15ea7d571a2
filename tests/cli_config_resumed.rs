//! What of its configuration a run may change when it goes on: all that does not move its bits, and its length.

use crate::cli_config::{arguments, file};
use dtrain::config::Origin;

#[test]
fn what_carries_the_gradients_may_change_where_their_sum_is_exact_and_not_in_a_ring() {
    let (exact, ring) = (arguments(&[]).unwrap(), arguments(&["reduce=ring"]).unwrap());
    assert!(exact.changed_bits(&arguments(&["backend=nccl"]).unwrap()).is_empty());
    assert_eq!(ring.changed_bits(&arguments(&["reduce=ring", "backend=nccl"]).unwrap()), ["backend"]);
    assert!(ring.changed_bits(&arguments(&["reduce=ring"]).unwrap()).is_empty());
}

#[test]
fn a_resumed_run_may_change_its_ranks_and_not_its_bits() {
    let old = arguments(&[]).unwrap();
    let free = arguments(&[
        "ranks=3",
        "threads=4",
        "isolation=thread",
        "workers=0",
        "detect=2s",
        "checkpoint.keep=9",
    ]);
    assert!(old.changed_bits(free.as_ref().unwrap()).is_empty());
    assert!(old.resumed_by(&free.unwrap()).unwrap().notes.is_empty());
    for (argument, key) in [
        ("seed=8", "seed"),
        ("global_batch=32", "global_batch"),
        ("micro_batch=8", "micro_batch"),
        ("reduce=ring", "reduce"),
        ("wire=bf16", "wire"),
        ("model.dropout=0.2", "model.dropout"),
        ("optimizer.lr=1", "optimizer.lr"),
        ("data.augment=none", "data.augment"),
        ("epochs=3", "epochs"),
    ] {
        let new = arguments(&[argument]).unwrap();
        assert_eq!(old.changed_bits(&new), [key]);
        let error = old.resumed_by(&new).unwrap_err();
        assert!(error.to_string().contains(&format!("{key}: it was ")), "{error}");
        assert!(error.hints()[0].contains("--fork"));
        assert!(matches!(error.problems[0].origin, Origin::Argument(_)));
    }
    let model = old.changed_bits(&arguments(&["model=mlp"]).unwrap());
    assert_eq!(
        model,
        [
            "model.kind",
            "model.hidden",
            "model.channels",
            "model.kernel",
            "model.padding",
            "model.pool",
            "model.batch_norm",
            "model.dropout"
        ]
    );
}

#[test]
fn a_run_may_be_made_longer_and_not_shorter_where_the_schedule_stretches_over_its_length() {
    let resumed =
        |before: &str, now: &str| arguments(&[before]).unwrap().resumed_by(&arguments(&[now]).unwrap());
    assert!(resumed("epochs=10", "epochs=30").unwrap().longer);
    assert!(resumed("steps=100", "steps=101").unwrap().longer);
    assert!(!resumed("epochs=10", "epochs=10").unwrap().longer);
    assert!(resumed("epochs=10", "epochs=9").is_err() && resumed("epochs=10", "steps=9000").is_err());
}

#[test]
fn a_run_whose_schedule_does_not_stretch_may_be_made_longer() {
    let old = arguments(&["schedule.kind=constant"]).unwrap();
    assert!(old.changed_bits(&arguments(&["schedule.kind=constant", "epochs=30"]).unwrap()).is_empty());
    assert!(old.changed_bits(&arguments(&["schedule.kind=constant", "steps=900"]).unwrap()).is_empty());
}

#[test]
fn a_global_batch_that_came_from_batch_size_gives_way_at_a_resume() {
    let old = arguments(&["batch_size=16", "ranks=4"]).unwrap();
    let resumed = old.resumed_by(&arguments(&["batch_size=16", "ranks=2"]).unwrap()).unwrap();
    assert_eq!((resumed.config.batch.global, resumed.config.world.ranks), (64, 2));
    assert_eq!(resumed.notes.len(), 1);
    assert!(file(&resumed.config.to_yaml(), &[]).unwrap().changed_bits(&old).is_empty());
    assert!(
        old.resumed_by(&arguments(&["global_batch=32", "ranks=2"]).unwrap()).is_err(),
        "an explicit one does not"
    );
}
