//! MLflow by its REST interface: the run is made, or found again, on a tracking server, gets the configuration as parameters, and its
//! curves in batches.
//!
//! A batch that comes twice has the same times and values, and such points MLflow keeps once. What its own clients read from the
//! environment holds here too: who asks (`MLFLOW_TRACKING_TOKEN`, or `_USERNAME` and `_PASSWORD`), and whom to trust
//! (`MLFLOW_TRACKING_SERVER_CERT_PATH`).
//!
//! *Source*: MLflow's REST API 2.0 (mlflow.org/docs/latest/rest-api).

use super::{Cursor, CurveRow, EndStatus, TrackError, TrackedRun, Tracker};
use crate::UnixTime;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// For a whole request with its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// To be connected.
const CONNECT: Duration = Duration::from_secs(5);
/// The largest answer that is read. *Units*: bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// What one request may hold.
const MOST_METRICS: usize = 1000;
const MOST_PARAMS: usize = 100;
/// The longest value of a parameter. *Units*: characters.
const LONGEST_VALUE: usize = 6000;

/// A tracking server, and how to be let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MlflowAddress {
    base: String,
    authorization: Option<String>,
    certificates: Option<PathBuf>,
}

/// Why a text is no address of a tracking server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no address of a tracking server: {why}")]
pub struct WrongAddress {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl MlflowAddress {
    /// Understands an address such as `http://127.0.0.1:5000` or `https://user:password@host/mlflow`; `variable` reads the environment.
    ///
    /// *Errors*: it is none.
    pub fn new(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, WrongAddress> {
        // Who may come in is nobody else's business.
        let shown = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let wrong = |why: String| WrongAddress { text: shown.to_owned(), why };
        let uri: Uri = text.parse().map_err(|error: ureq::http::uri::InvalidUri| wrong(error.to_string()))?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let (Some(scheme), Some(authority)) = (scheme, uri.authority()) else {
            return Err(wrong("it begins with neither http:// nor https://".into()));
        };
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority.as_str()),
        };
        let basic = |user: String| format!("Basic {}", BASE64_STANDARD.encode(user));
        let named = || {
            let user = variable("MLFLOW_TRACKING_USERNAME")?;
            Some(format!("{user}:{}", variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default()))
        };
        let token = || variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        Ok(Self {
            base: format!("{scheme}://{host}{}", uri.path().trim_end_matches('/')),
            authorization: user.or_else(named).map(basic).or_else(token),
            certificates: variable("MLFLOW_TRACKING_SERVER_CERT_PATH").map(PathBuf::from),
        })
    }

    /// Where it is, without what lets somebody in.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// *Errors*: the certificates cannot be read.
    fn agent(&self) -> Result<ureq::Agent, TrackError> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.certificates {
            let fail = |error: &dyn std::fmt::Display| {
                TrackError::Final(format!("MLFLOW_TRACKING_SERVER_CERT_PATH: {}: {error}", path.display()))
            };
            let pem = std::fs::read(path).map_err(|error| fail(&error))?;
            let mut certificates = Vec::new();
            for item in parse_pem(&pem) {
                if let PemItem::Certificate(certificate) = item.map_err(|error| fail(&error))? {
                    certificates.push(certificate);
                }
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .timeout_connect(Some(CONNECT))
            .http_status_as_error(false)
            .user_agent("dtrain")
            .tls_config(tls.build());
        Ok(config.build().new_agent())
    }
}

/// A client of a tracking server. See the file's comment.
pub struct Mlflow {
    address: MlflowAddress,
    experiment: String,
    /// Made when it is first needed.
    agent: OnceLock<ureq::Agent>,
}

impl Mlflow {
    /// A client; nobody is asked yet.
    #[must_use]
    pub fn new(address: MlflowAddress, experiment: String) -> Self {
        Self { address, experiment, agent: OnceLock::new() }
    }
}

impl Tracker for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn begin(&mut self, run: &TrackedRun, cursor: &mut Cursor) -> Result<(), TrackError> {
        if !cursor.place.is_empty() && cursor.place != self.address.base {
            return Err(TrackError::Final(format!(
                "the run is known at {}, and not at {} (remove {} to begin anew there)",
                cursor.place,
                self.address.base,
                run.folder.join("track/mlflow.json").display()
            )));
        }
        if cursor.run_id.is_empty() {
            cursor.experiment_id = self.experiment()?;
            cursor.run_id = self.create(run, &cursor.experiment_id)?;
            cursor.place.clone_from(&self.address.base);
        } else {
            self.update(&cursor.run_id, json!({ "status": "RUNNING" }))?;
        }
        if !cursor.is_described {
            self.describe(run, &cursor.run_id)?;
            cursor.is_described = true;
        }
        Ok(())
    }

    fn send(&mut self, rows: &[CurveRow], cursor: &Cursor) -> Result<(), TrackError> {
        let metric = |row: &CurveRow, name: &str, number: f64| {
            json!({
                "key": acceptable(name), "value": value(number), "timestamp": milliseconds(row.time), "step": row.step,
            })
        };
        let metrics: Vec<Value> = rows
            .iter()
            .flat_map(|row| row.numbers.iter().map(move |(name, number)| metric(row, name, *number)))
            .collect();
        for part in metrics.chunks(MOST_METRICS) {
            self.post("runs/log-batch", &json!({ "run_id": cursor.run_id, "metrics": part }))?;
        }
        Ok(())
    }

    fn end(&mut self, status: EndStatus, cursor: &Cursor) -> Result<(), TrackError> {
        let status = match status {
            EndStatus::Finished => "FINISHED",
            EndStatus::Failed => "FAILED",
            EndStatus::Stopped => "KILLED",
        };
        self.update(&cursor.run_id, json!({ "status": status, "end_time": milliseconds(UnixTime::now()) }))
    }

    fn place(&self, cursor: &Cursor) -> String {
        format!("{}/#/experiments/{}/runs/{}", cursor.place, cursor.experiment_id, cursor.run_id)
    }
}

impl Mlflow {
    /// The experiment of this name, which is made if nobody has.
    fn experiment(&self) -> Result<String, TrackError> {
        let id = |answer: &Value, at: &str| answer.pointer(at).and_then(Value::as_str).map(str::to_owned);
        let unknown = || TrackError::Final(format!("{} names no experiment", self.address.base));
        let query = [("experiment_name", self.experiment.clone())];
        match self.ask("experiments/get-by-name", &query)? {
            Answer { status: 200, body } => id(&body, "/experiment/experiment_id").ok_or_else(unknown),
            answer if answer.code() == "RESOURCE_DOES_NOT_EXIST" => {
                let name = json!({ "name": self.experiment });
                match self.try_post("experiments/create", &name)? {
                    Answer { status: 200, body } => id(&body, "/experiment_id").ok_or_else(unknown),
                    // Another run has made it in this moment: it is there the next time.
                    answer if answer.code() == "RESOURCE_ALREADY_EXISTS" => {
                        Err(TrackError::Passing(answer.problem()))
                    }
                    answer => Err(answer.error(&self.address.base)),
                }
            }
            answer => Err(answer.error(&self.address.base)),
        }
    }

    fn create(&self, run: &TrackedRun, experiment: &str) -> Result<String, TrackError> {
        let folder = run.folder.display().to_string();
        let tags = [
            ("mlflow.source.name", "dtrain"),
            ("mlflow.source.type", "LOCAL"),
            ("dtrain.version", run.version.as_str()),
            ("dtrain.host", run.host.as_str()),
            ("dtrain.folder", folder.as_str()),
        ];
        let tags = tags.map(|(key, value)| json!({ "key": key, "value": value }));
        let start = milliseconds(UnixTime::now());
        let body =
            json!({ "experiment_id": experiment, "run_name": run.name, "start_time": start, "tags": tags });
        let answer = self.post("runs/create", &body)?;
        let id = answer.pointer("/run/info/run_id").and_then(Value::as_str);
        id.map(str::to_owned)
            .ok_or_else(|| TrackError::Final(format!("{} names no run that it made", self.address.base)))
    }

    fn describe(&self, run: &TrackedRun, id: &str) -> Result<(), TrackError> {
        for part in run.params.chunks(MOST_PARAMS) {
            let param = |(key, value): &(String, String)| json!({ "key": key, "value": value.chars().take(LONGEST_VALUE).collect::<String>() });
            let params: Vec<Value> = part.iter().map(param).collect();
            self.post("runs/log-batch", &json!({ "run_id": id, "params": params }))?;
        }
        Ok(())
    }

    fn update(&self, id: &str, mut body: Value) -> Result<(), TrackError> {
        body["run_id"] = id.into();
        self.post("runs/update", &body).map(drop)
    }

    fn post(&self, what: &str, body: &Value) -> Result<Value, TrackError> {
        match self.try_post(what, body)? {
            Answer { status: 200, body } => Ok(body),
            answer => Err(answer.error(&self.address.base)),
        }
    }

    fn try_post(&self, what: &str, body: &Value) -> Result<Answer, TrackError> {
        let request = self.agent()?.post(self.url(what)).content_type("application/json");
        let request = match &self.address.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        };
        self.answer(request.send(body.to_string().as_bytes()))
    }

    fn ask(&self, what: &str, query: &[(&str, String)]) -> Result<Answer, TrackError> {
        let query = query.iter().map(|(name, value)| (*name, value.as_str()));
        let request = self.agent()?.get(self.url(what)).query_pairs(query);
        let request = match &self.address.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        };
        self.answer(request.call())
    }

    fn url(&self, what: &str) -> String {
        format!("{}/api/2.0/mlflow/{what}", self.address.base)
    }

    fn agent(&self) -> Result<&ureq::Agent, TrackError> {
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        let agent = self.address.agent()?;
        Ok(self.agent.get_or_init(|| agent))
    }

    fn answer(
        &self,
        came: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Answer, TrackError> {
        let passing = |error: ureq::Error| TrackError::Passing(format!("{}: {error}", self.address.base));
        let mut response = came.map_err(passing)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(LONGEST_ANSWER).lossy_utf8(true).read_to_string();
        let text = text.map_err(passing)?;
        Ok(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
    }
}

/// What a server answers.
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body.get("error_code").and_then(Value::as_str).unwrap_or_default()
    }

    fn problem(&self) -> String {
        let message = self.body.get("message").or(Some(&self.body)).and_then(Value::as_str);
        // A page of HTML says nothing in a line.
        let message = message.filter(|text| !text.trim_start().starts_with('<')).unwrap_or_default();
        let line: String = message.lines().next().unwrap_or_default().chars().take(300).collect();
        format!("it answers {} {line}", self.status).trim_end().to_owned()
    }

    /// Servers that are busy, starting, or behind something that is, may do it later.
    fn error(&self, base: &str) -> TrackError {
        let text = format!("{base}: {}", self.problem());
        match self.status {
            408 | 429 | 500..=599 => TrackError::Passing(text),
            _ => TrackError::Final(text),
        }
    }
}

fn milliseconds(time: UnixTime) -> i64 {
    (time.0 * 1e3).round() as i64
}

/// A number as its JSON has it.
fn value(number: f64) -> Value {
    match number {
        x if x.is_finite() => json!(x),
        x if x.is_nan() => json!("NaN"),
        x => json!(if x > 0.0 { "Infinity" } else { "-Infinity" }),
    }
}

/// A name that it takes: that of one class has brackets.
fn acceptable(name: &str) -> String {
    let fits = |c: char| c.is_alphanumeric() || "_-. :/".contains(c);
    name.trim_end_matches(']').chars().map(|c| if fits(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_and_what_is_none_is_named() {
        let variables = |given: &'static [(&str, &str)]| {
            move |name: &str| given.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let plain = MlflowAddress::new("http://127.0.0.1:5000/", variables(&[])).unwrap();
        assert_eq!((plain.base(), &plain.authorization), ("http://127.0.0.1:5000", &None));
        let user = MlflowAddress::new("https://ann:pw@host/mlflow", variables(&[])).unwrap();
        assert_eq!(user.base(), "https://host/mlflow");
        assert_eq!(user.authorization.as_deref(), Some("Basic YW5uOnB3"));
        let token = MlflowAddress::new("http://h", variables(&[("MLFLOW_TRACKING_TOKEN", "t")])).unwrap();
        assert_eq!(token.authorization.as_deref(), Some("Bearer t"));
        let named = &[("MLFLOW_TRACKING_USERNAME", "ann"), ("MLFLOW_TRACKING_PASSWORD", "pw")];
        assert_eq!(
            MlflowAddress::new("http://h", variables(named)).unwrap().authorization,
            user.authorization
        );
        for text in [
            "localhost:5000",
            "127.0.0.1:5000",
            "file:///tmp/mlruns",
            "sqlite:///a.db",
            "databricks",
            "",
            "http://",
        ] {
            let error = MlflowAddress::new(text, variables(&[])).unwrap_err();
            assert!(error.to_string().contains("is no address of a tracking server"), "{text}: {error}");
        }
    }

    #[test]
    fn names_and_numbers_become_those_that_it_takes() {
        assert_eq!(acceptable("epoch/val_f1[cat]"), "epoch/val_f1_cat");
        assert_eq!(acceptable("train/loss"), "train/loss");
        assert_eq!(
            [1.5, f64::NAN, f64::NEG_INFINITY].map(value),
            [json!(1.5), json!("NaN"), json!("-Infinity")]
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_a_problem_that_may_pass_and_one_that_refuses_is_none() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = MlflowAddress::new(&format!("http://{free}"), |_| None).unwrap();
        let error = Mlflow::new(address, "e".into()).begin(&TrackedRun::default(), &mut Cursor::default());
        assert!(
            matches!(&error, Err(TrackError::Passing(text)) if text.contains(&free.to_string())),
            "{error:?}"
        );
        let answer =
            |status, text: &str| Answer { status, body: Value::String(text.into()) }.error("http://h");
        assert_eq!(answer(404, "<html>"), TrackError::Final("http://h: it answers 404".into()));
        assert_eq!(answer(503, "busy\nvery"), TrackError::Passing("http://h: it answers 503 busy".into()));
    }
}
