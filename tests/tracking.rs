//! Trackers: a real server of MLflow that is down, comes up and gets everything; offline files that the real `wandb sync` uploads.

use crate::harness::hosts::free_port;
use crate::harness::http::{http_body, query_part};
use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, MLP, Running, Signal, dtrain, finish, folder, output, refused, said, signal, signal_group,
    train,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A Python with `mlflow` and `wandb`; one of the two, if only that is asked for.
fn python(package: &str) -> Option<PathBuf> {
    let python = std::env::var_os("DTRAIN_TEST_TRACKERS").map(PathBuf::from)?;
    let mut found = Command::new(&python);
    found.args(["-c", &format!("import importlib.metadata as m; m.version('{package}')")]);
    quietly(&mut found).status().is_ok_and(|status| status.success()).then_some(python)
}

fn quietly(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null())
}

/// A process that is ended with its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has children of its own, in its group.
        signal_group(Signal::KILL, self.0.id());
        let _ = self.0.wait();
    }
}

fn lines(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_tracker_that_hangs_costs_a_run_no_step_and_what_it_did_not_take_is_kept() {
    if !has_turn(2) {
        return;
    }
    let here = folder();
    let alone = train(here.path(), &format!("{MLP} ranks=2 epochs=3 name=alone")).digest();
    // It lets everybody in and says nothing.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = hung.local_addr().unwrap();
    let begun = Instant::now();
    let tracked = train(
        here.path(),
        &format!("{MLP} ranks=2 epochs=3 name=m track=[mlflow,wandb] mlflow.uri=http://{at}"),
    );
    assert_eq!(tracked.digest(), alone);
    tracked.said("warning: mlflow: not everything is sent");
    tracked.said("`dtrain track runs/m` sends what is left");
    assert!(begun.elapsed() < Duration::from_secs(60), "nobody waits a minute for it");
    // The other one has everything.
    let cursor: Value =
        serde_json::from_str(&fs::read_to_string(here.path().join("runs/m/track/wandb.json")).unwrap())
            .unwrap();
    assert_eq!(cursor["rows"], lines(&here.path().join("runs/m")).len());
    drop(hung);
    let (later, _) = output(here.path(), "track runs/m track=mlflow");
    later.ended_with(1);
    later.said(&format!("mlflow: 0 rows sent, then: http://{at}"));
    later.said("hint: nothing is lost");
    refused(here.path(), "track runs/m track=tensorboard", &["no tracker to be sent to", "hint:"]);
    refused(here.path(), "track runs/nowhere", &["there is no run runs/nowhere"]);
}

struct MlflowServer {
    at: String,
    _server: Server,
}

impl MlflowServer {
    fn start(python: &Path, folder: &Path, port: u16) -> Self {
        let at = format!("127.0.0.1:{port}");
        let mut command = Command::new(python);
        command.args(["-m", "mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db"]);
        command.args(["--host", "127.0.0.1", "--workers", "1", "--port", &port.to_string()]);
        command.current_dir(folder).env("MLFLOW_DISABLE_TELEMETRY", "true").env("DO_NOT_TRACK", "1");
        let server = Server(quietly(&mut command).process_group(0).spawn().unwrap());
        let patience = Instant::now() + Duration::from_secs(110);
        while http_body(&at, "/health").is_none() {
            assert!(Instant::now() < patience, "the server did not begin");
            std::thread::sleep(Duration::from_millis(200));
        }
        Self { at, _server: server }
    }

    fn get(&self, what: &str) -> Value {
        let body =
            http_body(&self.at, &format!("/api/2.0/mlflow/{what}")).unwrap_or_else(|| panic!("{what}"));
        serde_json::from_str(&body).unwrap()
    }

    /// The values of a curve by step.
    fn curve(&self, run: &str, name: &str) -> Vec<(u64, f64)> {
        let key = query_part(name);
        let query = format!("metrics/get-history?run_id={run}&metric_key={key}&max_results=25000");
        let points = self.get(&query)["metrics"].as_array().cloned().unwrap_or_default();
        let mut points: Vec<(u64, f64)> = points
            .iter()
            .map(|point| (point["step"].as_u64().unwrap_or(0), point["value"].as_f64().unwrap()))
            .collect();
        points.sort_by_key(|(step, _)| *step);
        points
    }
}

/// What a run wrote down of its steps.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let steps = lines(run);
    let steps = steps.iter().filter(|line| line["kind"] == "step");
    steps.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap())).collect()
}

#[test]
fn a_server_of_mlflow_that_comes_up_later_gets_everything_and_a_resumed_run_goes_on_there() {
    // The server takes seconds to begin.
    if !has_turn(2) {
        return;
    }
    let Some(python) = python("mlflow") else {
        println!("skipped: there is no mlflow here (DTRAIN_TEST_TRACKERS names a Python that has it)");
        return;
    };
    let here = folder();
    let run = here.path().join("runs/m");
    let port = free_port();
    let keys = format!(
        "{MLP} ranks=2 schedule.kind=constant track=[tensorboard,mlflow] mlflow.uri=http://127.0.0.1:{port}"
    );
    let down = train(here.path(), &format!("{keys} epochs=2 name=m"));
    down.succeeded();
    down.said("Connection refused");
    down.said("`dtrain track runs/m` sends what is left");
    assert!(run.join("tb").is_dir());

    let server = MlflowServer::start(&python, here.path(), port);
    let sent = said(here.path(), "track m");
    assert!(
        sent.contains("nothing is left") && sent.contains(&format!("http://{}/#/experiments/", server.at)),
        "{sent}"
    );
    let id = sent.rsplit_once('/').unwrap().1.trim().to_owned();
    let get = || server.get(&format!("runs/get?run_id={id}"))["run"].clone();
    assert_eq!(server.curve(&id, "train/loss"), losses(&run));
    let known = get();
    assert_eq!((&known["info"]["status"], &known["info"]["run_name"]), (&"FINISHED".into(), &"m".into()));
    let words = |part: &Value| -> BTreeMap<String, String> {
        let all = part.as_array().unwrap().iter();
        all.map(|word| (word["key"].as_str().unwrap().into(), word["value"].as_str().unwrap().into()))
            .collect()
    };
    let params = words(&known["data"]["params"]);
    assert_eq!((params["seed"].as_str(), params["model.kind"].as_str()), ("7", "mlp"));
    assert!(words(&known["data"]["tags"]).contains_key("dtrain.version"));
    assert_eq!(server.curve(&id, "epoch/val_accuracy").len(), 2);
    // Nothing is left: nothing is sent twice.
    assert!(said(here.path(), "track m").contains("0 rows sent"));

    // It goes on in the same run, and its leading process is killed in the middle of that.
    let mut killed = Running::start(here.path(), "--resume m epochs=100000");
    killed.wait_for_step(2 * 36 + 200);
    killed.kill_everything();
    drop(killed);
    finish(dtrain(here.path(), "train --json --resume m epochs=4 --fork name=f")).succeeded();
    let sent = said(here.path(), "track m");
    assert!(sent.contains(&id), "{sent}");
    // Steps that were made again are there again, with the same values.
    let distinct = |points: Vec<(u64, f64)>| -> BTreeMap<u64, f64> { points.into_iter().collect() };
    assert_eq!(distinct(server.curve(&id, "train/loss")), distinct(losses(&run)));
    // A fork is another run.
    let forked = fs::read_to_string(here.path().join("runs/f/track/mlflow.json")).unwrap();
    assert!(!forked.contains(&id), "{forked}");
}

#[test]
fn what_a_run_wrote_offline_is_what_the_real_wandb_uploads() {
    if !has_turn(2) {
        return;
    }
    let Some(python) = python("wandb") else {
        println!("skipped: there is no wandb here (DTRAIN_TEST_TRACKERS names a Python that has it)");
        return;
    };
    let here = folder();
    let keys = format!("{MLP} ranks=2 schedule.kind=constant track=wandb wandb.project=demo");
    let mut killed = Running::start(here.path(), &format!("{keys} epochs=100000 name=w"));
    killed.wait_for_step(400);
    // A second of it is on its way to the file.
    let seen = || {
        fs::read_to_string(here.path().join("runs/w/track/wandb.json"))
            .is_ok_and(|text| !text.contains("\"rows\":0"))
    };
    let patience = Instant::now() + Duration::from_secs(60);
    while !seen() {
        assert!(Instant::now() < patience, "nothing was sent");
        std::thread::sleep(Duration::from_millis(50));
    }
    killed.kill_everything();
    drop(killed);
    let mut resumed = Running::start(here.path(), "--resume w");
    resumed.wait_for_step(900);
    signal(Signal::INT, resumed.pid());
    let resumed: Finished = resumed.finish();
    resumed.ended_with(130);
    resumed.said("`wandb sync ");
    let run = here.path().join("runs/w");
    let mut lives: Vec<PathBuf> =
        fs::read_dir(run.join("wandb")).unwrap().map(|entry| entry.unwrap().path()).collect();
    lives.sort();
    assert_eq!(lives.len(), 2, "a file a life: {lives:?}");

    let (port, heard) = (free_port(), here.path().join("heard.jsonl"));
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wandb_server.py");
    let mut command = Command::new(&python);
    command.arg(fixture).arg(port.to_string()).arg(&heard);
    let _server = Server(quietly(&mut command).process_group(0).spawn().unwrap());
    let mut sync = Command::new(&python);
    sync.args(["-m", "wandb", "sync"]).args(&lives).current_dir(here.path());
    sync.env("WANDB_BASE_URL", format!("http://127.0.0.1:{port}")).env("WANDB_API_KEY", "a".repeat(40));
    let synced = sync.stdin(Stdio::null()).output().unwrap();
    let said =
        String::from_utf8_lossy(&synced.stderr).into_owned() + &String::from_utf8_lossy(&synced.stdout);
    assert!(synced.status.success() && said.matches("Finished syncing").count() == 2, "{said}");
    let heard = fs::read_to_string(heard).unwrap();
    let heard: Vec<Value> = heard.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = heard.iter().flat_map(|request| {
        let content = request["body"]["files"]["wandb-history.jsonl"]["content"].as_array().cloned();
        content.unwrap_or_default()
    });
    let rows: Vec<Value> = rows.map(|row| serde_json::from_str(row.as_str().unwrap()).unwrap()).collect();
    let number = |row: &Value, name: &str| row[name].as_f64();
    let found: BTreeSet<(u64, u64)> = rows
        .iter()
        .filter_map(|row| Some((number(row, "step")? as u64, number(row, "train/loss")?.to_bits())))
        .collect();
    let written: BTreeSet<(u64, u64)> =
        losses(&run).into_iter().map(|(step, loss)| (step, loss.to_bits())).collect();
    assert_eq!(found, written, "{said}");
    let upserts = heard
        .iter()
        .filter(|request| request["body"]["query"].as_str().is_some_and(|q| q.contains("upsertBucket")));
    let variables: Vec<&Value> = upserts.map(|request| &request["body"]["variables"]).collect();
    assert!(variables.iter().all(|of| of["project"] == "demo") && variables[0]["displayName"] == "w");
    let config: Value = serde_json::from_str(variables[0]["config"].as_str().unwrap()).unwrap();
    assert_eq!((&config["seed"]["value"], &config["model"]["value"]["kind"]), (&7.into(), &"mlp".into()));
}
