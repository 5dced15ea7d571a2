//! Who watches a run from outside: scrapers of its metrics, and trackers.
//!
//! Everything that can be wrong with them by what the user wrote is found before the run folder is made ([`Watchers::open`]). What goes
//! wrong later is told, and costs the run nothing. The parts are of `dtrain-telemetry`; this file picks them.

mod relay;

use crate::arguments::VERSION;
use crate::config::{Config, Problem, TrackerKind};
use crate::early_signals;
use crate::error::CliError;
use crate::plan::Plan;
use crate::report::Voice;
use crate::run_folder::RunFolder;
use dtrain_data::InputSpec;
use dtrain_engine::Replica;
use dtrain_protocol::Outcome;
use dtrain_runtime::{Observer, host_name};
use dtrain_telemetry::track::{
    Courier, Delivered, EndStatus, Mlflow, MlflowAddress, TrackedRun, Tracker, Wandb, WandbNames,
};
use dtrain_telemetry::{Board, RunBegun, ScrapeServer, ScrapeSocket, reached_here};
use relay::Relay;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The experiment, or project, of whoever named none.
const USUAL_NAME: &str = "dtrain";
/// How long a tracker may take for what is left at the end of a run.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same for somebody who stopped the run, and waits, or kills it.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);

/// Whoever is to watch a run that has not begun.
#[derive(Default)]
pub struct Watchers {
    socket: Option<ScrapeSocket>,
    trackers: Vec<Box<dyn Tracker>>,
}

impl Watchers {
    /// Opens what a configuration asks for; nobody outside is asked yet.
    ///
    /// *Errors*: an address that is in use or none, a tracker without one; of kind usage.
    pub fn open(config: &Config) -> Result<Self, CliError> {
        let socket = config.watching.listen.as_deref().map(|text| listen(config, text)).transpose()?;
        Ok(Self { socket, trackers: trackers(config)? })
    }

    /// The same where nobody is there to mend it, as where another host leads on: what cannot be had is told, and left out.
    #[must_use]
    pub fn open_what_can_be(config: &Config) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let listen = config.watching.listen.as_deref().map(|text| listen(config, text)).transpose();
        let socket = listen.unwrap_or_else(|problem| {
            problems.push(problem.to_string());
            None
        });
        let trackers = trackers(config).unwrap_or_else(|problem| {
            problems.push(problem.to_string());
            Vec::new()
        });
        (Self { socket, trackers }, problems)
    }

    /// Where metrics can be read, as a person or a scraper on this host has it.
    #[must_use]
    pub fn metrics_url(&self) -> Option<String> {
        let at = |socket: &ScrapeSocket| format!("http://{}/metrics", reached_here(socket.local_addr()));
        self.socket.as_ref().map(at)
    }

    /// Lets them watch a run from now on. What cannot be had is told as a warning.
    pub(crate) fn start(self, plan: &Plan, run: &RunFolder, board: &Arc<Board>) -> Watching {
        let mut warnings = Vec::new();
        let server = self.socket.and_then(|socket| match socket.serve(Arc::clone(board)) {
            Ok(server) => Some(server),
            Err(error) => {
                warnings.push(format!("metrics.listen: no metrics can be read: {error}"));
                None
            }
        });
        let tracked = tracked(&plan.config, run);
        let mut couriers = Vec::new();
        for tracker in self.trackers {
            let name = tracker.name();
            match Courier::start(tracked.clone(), tracker) {
                Ok(courier) => couriers.push(courier),
                Err(error) => warnings.push(format!("{name}: {error}; {}", later(run))),
            }
        }
        Watching { _server: server, couriers, warnings, run: run.clone() }
    }
}

/// Whoever watches a run that goes on.
pub struct Watching {
    _server: Option<ScrapeServer>,
    couriers: Vec<Courier>,
    warnings: Vec<String>,
    run: RunFolder,
}

impl Watching {
    /// The same observer, which also hears what trackers have to say.
    pub(crate) fn relayed(&mut self, mut observer: Box<dyn Observer>) -> Box<dyn Observer> {
        self.warnings.drain(..).for_each(|warning| observer.warning(&warning));
        match self.couriers.is_empty() {
            true => observer,
            false => {
                let news = self.couriers.iter().map(Courier::news).collect();
                Box::new(Relay { inner: observer, news })
            }
        }
    }

    /// Lets trackers have what is left, and says where the run is, or what is missing there. *Blocks* for as long as they take it, and
    /// for a minute at most; a signal ends the process meanwhile, and loses nothing.
    pub(crate) fn finish(self, outcome: &Outcome, voice: Voice) {
        let (status, patience) = match outcome {
            Outcome::Finished(_) => (EndStatus::Finished, PATIENCE),
            Outcome::Interrupted(_) => (EndStatus::Stopped, SHORT_PATIENCE),
            Outcome::NotEnough { .. } | Outcome::Failed { .. } => (EndStatus::Failed, PATIENCE),
        };
        if self.couriers.is_empty() {
            return;
        }
        // Without handlers it would wait, deaf, for the whole time.
        let _ = early_signals::end_with_130();
        // All of them at once: who is quick is not behind who hangs.
        let until = Instant::now() + patience;
        let ending: Vec<Instant> = self.couriers.iter().map(|courier| courier.end(status, until)).collect();
        for (courier, until) in self.couriers.into_iter().zip(ending) {
            courier.news().take().iter().for_each(|news| voice.say(&format!("warning: {news}")));
            voice.say(&came_to(&courier.came_to(until), &self.run));
        }
    }
}

/// What came of a tracker, for people.
fn came_to(delivered: &Delivered, run: &RunFolder) -> String {
    let name = delivered.tracker;
    match (&delivered.problem, &delivered.place) {
        (Some(problem), _) => format!("warning: {name}: not everything is sent: {problem}; {}", later(run)),
        (None, Some(place)) => format!("  {name:<8} {place}"),
        (None, None) => format!("  {name:<8} there was nothing to send"),
    }
}

/// How what is left gets there.
fn later(run: &RunFolder) -> String {
    format!("`dtrain track {}` sends what is left", run.path.display())
}

/// What trackers are told of a run.
pub(crate) fn tracked(config: &Config, run: &RunFolder) -> TrackedRun {
    TrackedRun {
        name: run.name.clone(),
        folder: std::fs::canonicalize(&run.path).unwrap_or_else(|_| run.path.clone()),
        // Where curves go is no part of what is trained, and an address may hold a password.
        params: config.values().filter(|(key, _)| !is_of_watching(key)).collect(),
        version: VERSION.to_owned(),
        host: host_name(),
    }
}

fn is_of_watching(key: &str) -> bool {
    key == "track" || ["mlflow.", "wandb.", "metrics."].iter().any(|section| key.starts_with(section))
}

/// What is known of a run before its first step.
pub(crate) fn begun(plan: &Plan, replica: &dyn Replica, run: &RunFolder) -> RunBegun {
    let config = &plan.config;
    RunBegun {
        run: run.name.clone(),
        version: VERSION.to_owned(),
        pid: std::process::id(),
        host: host_name(),
        data: config.data_name().unwrap_or(config.data_kind()).to_owned(),
        model: config.model.kind().name().to_owned(),
        device: "cpu".to_owned(),
        ranks: config.world.ranks,
        hosts: 1,
        steps: plan.last_step().0,
        steps_per_epoch: plan.batches.steps_per_epoch(),
        global_batch: config.batch.global.into(),
        tokens_per_sample: match (&plan.spec.input, plan.external()) {
            (InputSpec::Tokens { length, .. }, None) => Some(*length as u64),
            _ => None,
        },
        parameters: replica.about().layout.parameters as u64,
    }
}

/// The trackers that a configuration names, but for TensorBoard, whose files are the run's own.
///
/// *Errors*: one has no address, or a wrong one.
pub(crate) fn trackers(config: &Config) -> Result<Vec<Box<dyn Tracker>>, Problem> {
    let (keys, mut trackers) = (&config.watching, Vec::<Box<dyn Tracker>>::new());
    let or_variable = |key: &Option<String>, name| key.clone().or_else(|| variable(name));
    if keys.tracks(TrackerKind::Mlflow) {
        let Some(uri) = or_variable(&keys.mlflow_uri, "MLFLOW_TRACKING_URI") else {
            let problem = config.problem("track", "mlflow is named, and nothing says where its server is");
            return Err(
                problem.hint("mlflow.uri=http://HOST:5000, or MLFLOW_TRACKING_URI in the environment")
            );
        };
        let address = MlflowAddress::new(&uri, variable).map_err(|wrong| {
            let from = if keys.mlflow_uri.is_some() { "" } else { "MLFLOW_TRACKING_URI: " };
            let problem = config.problem("mlflow.uri", format!("{from}{wrong}"));
            problem.hint("such as http://127.0.0.1:5000, where `mlflow server` listens")
        })?;
        let experiment = or_variable(&keys.mlflow_experiment, "MLFLOW_EXPERIMENT_NAME");
        trackers.push(Box::new(Mlflow::new(address, experiment.unwrap_or_else(|| USUAL_NAME.to_owned()))));
    }
    if keys.tracks(TrackerKind::Wandb) {
        let project = or_variable(&keys.wandb_project, "WANDB_PROJECT");
        let entity = or_variable(&keys.wandb_entity, "WANDB_ENTITY");
        let names = WandbNames { project: project.unwrap_or_else(|| USUAL_NAME.to_owned()), entity };
        trackers.push(Box::new(Wandb::new(names)));
    }
    Ok(trackers)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// *Errors*: no address, or one that cannot be had.
fn listen(config: &Config, text: &str) -> Result<ScrapeSocket, Problem> {
    let hint = "such as 127.0.0.1:9400; 0.0.0.0:9400 for scrapers on other hosts";
    let wrong = |why: String| config.problem("metrics.listen", why);
    let addresses = addresses(text).map_err(|why| wrong(format!("\"{text}\": {why}")).hint(hint))?;
    let mut refused = wrong(format!("\"{text}\" leads to no address")).hint(hint);
    for addr in addresses {
        refused = match ScrapeSocket::bind(addr) {
            Ok(socket) => return Ok(socket),
            Err(error) => match error.kind() {
                ErrorKind::AddrInUse => wrong(format!("the address {addr} is in use"))
                    .hint("stop what listens there, or choose another port; port 0 is a free one"),
                ErrorKind::AddrNotAvailable => wrong(format!("{addr} is no address of this host")).hint(hint),
                ErrorKind::PermissionDenied => wrong(format!("the port of {addr} is not for this user"))
                    .hint("choose one above 1023, such as 9400"),
                _ => wrong(format!("{addr}: {error}")).hint(hint),
            },
        };
    }
    Err(refused)
}

/// `HOST:PORT`, or a port of this host alone.
fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(vec![(IpAddr::from(Ipv4Addr::LOCALHOST), port).into()]);
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Err("expected HOST:PORT".to_owned()) };
    let port: u16 = port.parse().map_err(|_| format!("{port:?} is no port (0 to 65535)"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err("expected HOST:PORT".to_owned());
    }
    let found = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.collect())
}
