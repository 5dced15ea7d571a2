//! `dtrain status` and `dtrain runs`: how runs are, while they train, after they were killed, when they have ended, and over the network.

use crate::harness::hosts::free_port;
use crate::harness::turn::has_turn;
use crate::harness::{
    MLP, Running, Signal, dtrain, finish, folder, json, output, refused, said, signal, train,
};
use std::fs;

#[test]
fn a_run_is_seen_while_it_trains_when_nobody_leads_it_and_when_it_has_ended() {
    if !has_turn(23) {
        return;
    }
    let here = folder();
    refused(here.path(), "status", &["there are no runs in runs", "hint:"]);
    refused(here.path(), "status nowhere", &["there is no run nowhere", "hint:"]);
    refused(here.path(), "status --once --watch", &["cannot be used with"]);
    let mut running = Running::start(here.path(), &format!("{MLP} ranks=2 epochs=100000 name=a"));
    running.wait_for_step(200);
    let seen = json(here.path(), "status --json");
    assert_eq!(
        (&seen["run"], &seen["state"], &seen["leader"]),
        (&"a".into(), &"training".into(), &"here".into())
    );
    assert_eq!(
        (&seen["pid"], &seen["alive"], &seen["wanted"]),
        (&running.pid().into(), &2.into(), &2.into())
    );
    assert!(seen["step"].as_u64() >= Some(200) && seen["steps"].as_u64() > seen["step"].as_u64(), "{seen}");
    assert!(seen["seconds_left"].as_f64() > Some(0.0) && seen["loss"].is_f64(), "{seen}");
    // A rank is killed, and comes back.
    let lost = running.rank_pids()[1];
    signal(Signal::KILL, lost);
    running.wait_for(|line| line["event"] == "recovery").expect("it recovers");
    running.wait_for_step(running.last_step() + 1_000);
    let table = said(here.path(), "status a");
    assert!(table.contains("1 fault (signal 1), 1 restart, 1 recovery"), "{table}");
    assert!(
        table.contains("ranks    2 of 2 at work") && table.contains("at work, 1 restart, 1 fault"),
        "{table}"
    );
    assert!(
        table.contains(" left\n") && !table.contains('\u{1b}'),
        "plain text where there is no terminal: {table}"
    );
    assert!(said(here.path(), "runs").contains("trains now"));
    running.kill_everything();
    drop(running);
    let table = said(here.path(), "status a");
    assert!(
        table.contains("nobody leads it (killed?)") && table.contains("ranks    0 of 2 at work"),
        "{table}"
    );
    assert!(!table.contains(" left\n"), "{table}");
    assert_eq!(json(here.path(), "status a --json")["leader"], "nobody");

    train(here.path(), &format!("{MLP} ranks=2 epochs=2 name=b")).succeeded();
    // What has ended is shown once, whatever was asked for.
    let table = said(here.path(), "status --watch --every 1");
    assert!(
        table.starts_with("run      runs/b  finished ") && table.contains("(100.0 %)  epoch 2 of 2"),
        "{table}"
    );
    // A folder that holds no more than its configuration.
    fs::remove_file(here.path().join("runs/b/events.jsonl")).unwrap();
    fs::remove_file(here.path().join("runs/b/metrics.jsonl")).unwrap();
    assert!(said(here.path(), "status b").contains("has not begun"));
}

#[test]
fn runs_are_sorted_by_what_is_asked_for_and_show_what_differs() {
    let here = folder();
    for (name, lr) in [("one", "0.00001"), ("two", "0.01")] {
        train(here.path(), &format!("{MLP} ranks=1 epochs=2 optimizer.lr={lr} name={name}")).succeeded();
    }
    let order = |arguments: &str| -> Vec<String> {
        let lines = said(here.path(), &format!("runs --json {arguments}"));
        let runs = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        runs.map(|run| run["run"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order("--sort val_accuracy"), ["runs/one", "runs/two"], "the better one comes last");
    assert_eq!(order("--sort val_loss"), ["runs/two", "runs/one"]);
    assert_eq!(order("--sort name --reverse"), ["runs/two", "runs/one"]);
    assert!(said(here.path(), "runs").contains("optimizer.lr="));
    refused(here.path(), "runs --sort accuracy", &["no run has such a result", "val_accuracy"]);
}

#[test]
fn a_run_of_several_hosts_says_how_it_is_to_whoever_has_its_token_and_to_nobody_else() {
    let here = folder();
    for name in ["token", "other"] {
        said(here.path(), &format!("token new -o {name}"));
    }
    let master = format!("127.0.0.1:{}", free_port());
    let host = |rank: u32, keys: &str| {
        let arguments = format!("node --rank {rank} --nodes 2 --master {master} ranks=1 --json {keys}");
        let mut command = dtrain(here.path(), &arguments);
        command.env("DTRAIN_TOKEN_FILE", "token");
        Running::of(command)
    };
    let mut first = host(0, &format!("{MLP} epochs=100000 name=h"));
    let second = host(1, "");
    first.wait_for_step(50);
    let ask = |token: &str| {
        let mut command = dtrain(here.path(), &format!("status --master {master} --json"));
        command.env("DTRAIN_TOKEN_FILE", token);
        finish(command)
    };
    let seen = ask("token");
    seen.succeeded();
    let seen = &seen.lines[0];
    assert_eq!(
        (&seen["run"], &seen["leader"], &seen["state"]),
        (&"h".into(), &"answered".into(), &"training".into())
    );
    assert_eq!((&seen["alive"], seen["ranks"].as_array().unwrap().len()), (&2.into(), 2));
    assert!(seen["step"].as_u64() >= Some(50), "{seen}");
    let refused = ask("other");
    refused.ended_with(2);
    refused.said("its certificate is of another token");
    refused.said("hint: the token must be that of the run's hosts");
    // Who asks takes nobody's place.
    let step = first.last_step();
    first.wait_for_step(step + 100);
    assert!(!first.lines.iter().any(|line| line["event"] == "fault"));
    signal(Signal::INT, first.pid());
    first.finish().ended_with(130);
    second.finish().ended_with(130);
    let mut nobody = dtrain(here.path(), &format!("status --master {master}"));
    nobody.env("DTRAIN_TOKEN_FILE", "token");
    let nobody = finish(nobody);
    nobody.ended_with(1);
    nobody.said("no supervisor answered");
    nobody.said("hint: is `dtrain node --rank 0` running");
    let (table, _) = output(here.path(), "status h");
    table.succeeded();
}
