//! Who watches a run from outside: scrapers, a real Prometheus among them, with the board that is there for Grafana.

use crate::harness::hosts::free_port;
use crate::harness::http::{http_body, http_get, query_part};
use crate::harness::turn::has_turn;
use crate::harness::{MLP, Running, Signal, dtrain, finish, folder, output, refused, signal, train};
use dtrain_telemetry::exposed_names;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any test; who watches it ends it.
const ENDLESS: &str =
    "epochs=100000 checkpoint.every=none schedule.warmup=none metrics.listen=127.0.0.1:0 name=watched";

/// The expressions of the board, as Prometheus is asked them.
fn expressions() -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
                Value::String(expression) if name == "expr" => found.push(expression.clone()),
                value => collect(value, found),
            }),
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&board, &mut found);
    assert!(found.len() > 20, "{found:?}");
    found.iter().map(|text| text.replace("$run", ".*").replace("$__rate_interval", "30s")).collect()
}

/// The names of metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dtrain_")).map(str::to_owned).collect()
}

/// Where a run says that its metrics are.
fn metrics_at(running: &Running) -> String {
    running.wait_for_words("/metrics");
    let said = running.said_so_far();
    let (_, url) = said.split_once("http://").unwrap();
    url.split_once('/').unwrap().0.to_owned()
}

#[test]
fn every_expression_of_the_board_names_metrics_that_there_are() {
    let exposed: BTreeSet<String> = exposed_names().into_iter().collect();
    let asked: BTreeSet<String> = expressions().iter().flat_map(|expression| names(expression)).collect();
    let unknown: Vec<_> = asked.difference(&exposed).collect();
    assert!(unknown.is_empty(), "the board asks for {unknown:?}");
}

/// Debian's Prometheus, where it is: its folder in a variable, or on the path.
fn prometheus() -> Option<[PathBuf; 2]> {
    let found = |folder: PathBuf| {
        let programs = ["prometheus", "promtool"].map(|name| folder.join(name));
        programs.iter().all(|program| program.is_file()).then_some(programs)
    };
    if let Some(named) = std::env::var_os("DTRAIN_TEST_PROMETHEUS") {
        return Some(found(named.into()).expect("DTRAIN_TEST_PROMETHEUS has prometheus and promtool"));
    }
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(found)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the answer is one that is wanted.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < patience, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_real_prometheus_scrapes_a_run_that_loses_a_rank_and_answers_every_expression_of_the_board() {
    // A run that never waits costs seconds on all cores.
    if !has_turn(22) {
        return;
    }
    let Some([prometheus, promtool]) = prometheus() else {
        println!("skipped: there is no prometheus here (DTRAIN_TEST_PROMETHEUS names its folder)");
        return;
    };
    let here = folder();
    let mut running = Running::start(here.path(), &format!("{MLP} ranks=2 {ENDLESS}"));
    let at = metrics_at(&running);
    running.wait_for_step(50);
    let text = http_body(&at, "/metrics").unwrap();
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && complaints.is_empty(), "{complaints}\n{text}");

    let config = format!(
        "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\nscrape_configs:\n- job_name: dtrain\n  static_configs: [{{targets: ['{at}']}}]\n"
    );
    fs::write(here.path().join("prometheus.yml"), config).unwrap();
    let own = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(prometheus);
    command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--log.level=error"]);
    command.arg(format!("--web.listen-address={own}")).current_dir(here.path());
    let _prometheus = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let ask = |expression: &str| -> Option<Vec<Value>> {
        let answer = http_get(&own, &format!("/api/v1/query?query={}", query_part(expression)), "")?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        Some(answer["data"]["result"].as_array()?.clone())
    };
    let seen = |expression: &str| ask(expression).filter(|found| !found.is_empty());
    until("a first scrape", || seen("dtrain_steps_total > 50"));
    until("two ranks", || seen("dtrain_ranks == 2"));
    let lost = running.rank_pids()[1];
    signal(Signal::KILL, lost);
    until("the fault", || seen("dtrain_faults_total{kind=\"signal\"} == 1"));
    until("the recovery", || seen("dtrain_recoveries_total == 1 and dtrain_ranks == 2"));
    until("the restart", || seen("sum(dtrain_rank_restarts_total) == 1"));
    // Rates need two scrapes.
    until("a rate", || seen("rate(dtrain_steps_total[30s]) > 0"));
    // It was scraped as OpenMetrics: the older format has no unit.
    let metadata = http_body(&own, "/api/v1/metadata?metric=dtrain_step_seconds_total").unwrap();
    let open = http_body(&own, "/api/v1/metadata?metric=dtrain_step_seconds").unwrap();
    assert!(format!("{metadata}{open}").contains("\"unit\":\"seconds\""), "{metadata}{open}");
    // What a run of an MLP on the CPU that loses no state cannot have.
    let never = ["gpu", "tokens", "slowness", "checkpoint_step", "changes("];
    for expression in expressions() {
        let found = ask(&expression).unwrap();
        let may_be_empty = never.iter().any(|part| expression.contains(part));
        assert!(may_be_empty || !found.is_empty(), "no answer to {expression}");
    }
    signal(Signal::INT, running.pid());
    running.finish().ended_with(130);
}

#[test]
fn scrapers_that_are_silent_slow_or_hostile_cost_a_run_nothing() {
    if !has_turn(21) {
        return;
    }
    let here = folder();
    let keys = format!("{MLP} ranks=2 epochs=30");
    let alone = train(here.path(), &format!("{keys} name=alone")).digest();
    let command =
        dtrain(here.path(), &format!("train --json {keys} name=watched metrics.listen=127.0.0.1:0"));
    let mut running = Running::of(command);
    let at = metrics_at(&running);
    // They say nothing, say too much, or never read: more of each than there are places.
    let mut hostile: Vec<TcpStream> = (0..40).filter_map(|_| TcpStream::connect(&at).ok()).collect();
    assert!(hostile.len() > 8, "{}", hostile.len());
    for (number, stream) in hostile.iter_mut().enumerate() {
        let said: &[u8] = match number % 4 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\n",
            2 => &[b'a'; 100_000],
            _ => b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        };
        // Whoever is cut off may not say everything.
        let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(said));
    }
    running.wait_for_step(20);
    let watched = running.finish();
    assert_eq!(watched.digest(), alone);
    drop(hostile);
}

#[test]
fn an_address_that_cannot_be_had_is_one_error_with_a_hint_and_nothing_is_written() {
    let here = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    for (address, said) in [
        (busy.as_str(), "is in use"),
        ("192.0.2.1:9400", "is no address of this host"),
        ("127.0.0.1:99999", "is no port"),
        ("nothing", "expected HOST:PORT"),
        (":9400", "expected HOST:PORT"),
    ] {
        let text = refused(here.path(), &format!("train {MLP} metrics.listen={address}"), &[said, "hint:"]);
        assert!(text.is_empty(), "{text}");
        assert!(!here.path().join("runs").exists(), "{address}: something was written");
    }
    for (keys, said) in [
        ("track=mlflow", "nothing says where its server is"),
        ("track=mlflow mlflow.uri=127.0.0.1:5000", "is no address of a tracking server"),
        ("track=tensorbord", "did you mean"),
    ] {
        let mut command = dtrain(here.path(), &format!("train {MLP} {keys}"));
        command.env_remove("MLFLOW_TRACKING_URI");
        let ended = finish(command);
        ended.ended_with(2);
        ended.said(said);
        ended.said("hint:");
        assert!(!here.path().join("runs").exists(), "{keys}: something was written");
    }
    let (ended, _) = output(here.path(), &format!("train {MLP} epochs=1 track=none name=bare"));
    ended.succeeded();
    assert!(!here.path().join("runs/bare/tb").exists());
}
