//! `dtrain node`: one host of several. The host of rank 0 does all that `dtrain train` does and lets the others join; every
//! other one joins, brings its ranks, and ends with the run.

use crate::arguments::Node;
use crate::config::{Config, HostCount, Isolation};
use crate::early_signals;
use crate::error::{CliError, Kind};
use crate::external::{Brought, ExternalProgram};
use crate::fabric::new_arena;
use crate::gpus::{ON_SEVERAL_HOSTS, choose_here, this_machine_of_several};
use crate::hosts::{HostsPlan, await_names, forget_token, reached_at};
use crate::kept::LeftKeeper;
use crate::leader::LeadingHost;
use crate::mesh_address::MeshAddress;
use crate::nccl::ChosenBackend;
use crate::plan::{Plan, Prototype};
use crate::rank_setup::RunSetup;
use crate::report::Voice;
use crate::request::run_meant;
use crate::run_folder::RunFolder;
use crate::status::Follower;
use dtrain_checkpoint::RunLock;
use dtrain_collective::Geometry;
use dtrain_protocol::{BootId, ClockOffset, Goodbye};
use dtrain_runtime::{
    Callee, HostConfig, HostEnd, HostNews, Isolation as Lives, Program, Succession, Uplink, UplinkError,
};
use dtrain_telemetry::Progress;
use dtrain_types::{NodeId, Reduce, WorldSize, counted};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Trains on this host as one of several.
///
/// *Errors*: of the request, of the training, or the first host is lost. *Blocks* for the whole run.
pub fn run(arguments: &Node, brought: Option<Brought>) -> Result<ExitCode, CliError> {
    // As the first process of a container it would not be ended by a signal that it does not handle.
    early_signals::end_with_130()
        .map_err(|error| CliError::failed(format!("cannot handle signals: {error}")))?;
    if let Some(run) = Succeeding::here() {
        // The host that led may have no address any more.
        let own = HostsPlan::new(arguments, |names| Ok(vec![SocketAddr::new(run.own, names[0].1)]))?;
        return own.map_or(Ok(ExitCode::SUCCESS), |hosts| succeed(arguments, brought, hosts, &run));
    }
    let run = run_of(arguments);
    let leader = run.as_ref().and_then(led_by_another);
    let hosts = HostsPlan::new(arguments, |names| match leader {
        Some(leader) => Ok(vec![leader.at]),
        None => await_names(names, arguments.train.output, || patience(arguments)),
    })?;
    match (hosts, run.zip(leader)) {
        (Some(hosts), Some((run, leader))) if hosts.rank == 0 => {
            rejoin(arguments, brought, &hosts, &run, leader)
        }
        (Some(hosts), led) if hosts.rank > 0 => {
            join(arguments, brought, &hosts, led.map(|(_, leader)| leader))
        }
        (hosts, _) => {
            let trained = super::train::run(&arguments.train, brought, hosts.as_ref());
            // Another host may have taken the lead while this one came back to it.
            if let (Err(_), Some(hosts)) = (&trained, &hosts)
                && let Some((run, leader)) = overtaken(arguments)
            {
                return rejoin(arguments, brought, hosts, &run, leader);
            }
            if run_of(arguments).is_none_or(|run| LeadingHost::of(&run.path).is_none()) {
                forget_token();
            }
            trained.map(|_| ExitCode::SUCCESS)
        }
    }
}

/// What a host that starts a supervisor tells it: the folder of the run, and where this host is reached.
struct Succeeding {
    run_dir: PathBuf,
    own: IpAddr,
}

const SUCCEEDS_RUN: &str = "DTRAIN_SUCCEEDS_RUN";
const SUCCEEDS_AT: &str = "DTRAIN_SUCCEEDS_AT";

impl Succeeding {
    /// What this process was told, if it was started for that.
    fn here() -> Option<Self> {
        let own = std::env::var(SUCCEEDS_AT).ok()?.parse().ok()?;
        Some(Self { run_dir: std::env::var_os(SUCCEEDS_RUN)?.into(), own })
    }
}

/// Leads the run in the place of a host that is lost, unless another host is faster.
fn succeed(
    arguments: &Node,
    brought: Option<Brought>,
    mut hosts: HostsPlan,
    run: &Succeeding,
) -> Result<ExitCode, CliError> {
    if !is_vacant(&run.run_dir) {
        return Ok(ExitCode::SUCCESS);
    }
    let before = LeadingHost::of(&run.run_dir).map_or(0, |leader| leader.host);
    hosts.succeeds = Some(NodeId(before));
    let mut train = arguments.train.clone();
    train.resume = Some(run.run_dir.display().to_string());
    (train.settings.file, train.settings.overrides) = (None, Vec::new());
    let trained = super::train::run(&train, brought, Some(&hosts));
    // Whoever leads next needs it, if this one ended before the run.
    if LeadingHost::of(&run.run_dir).is_none() {
        forget_token();
    }
    trained.map(|_| ExitCode::SUCCESS)
}

/// Whether nobody leads a run that has not ended in good order.
fn is_vacant(run_dir: &Path) -> bool {
    LeadingHost::of(run_dir).is_some() && RunLock::is_free(run_dir)
}

/// What a run has come to whose supervisor has let go of it, as its folder tells: a host that was cut off meanwhile waits for no other one.
fn ended(run_dir: &Path) -> Option<Goodbye> {
    if LeadingHost::of(run_dir).is_some() || !RunLock::is_free(run_dir) {
        return None;
    }
    let Progress { begun, begun_at, summary, .. } =
        Follower::new(RunFolder::at(run_dir.to_owned())).and_then(|mut run| run.look()).ok()?.progress;
    // A folder that cannot be seen for a while says nothing.
    begun_at?;
    let (code, why) = match summary {
        Some(summary) if summary.steps >= begun.steps || summary.stopped.is_some() => (0, "the run is over"),
        Some(_) => (130, "the run was interrupted"),
        None => (1, "the run has failed"),
    };
    Some(Goodbye { code, why: why.to_owned() })
}

/// The run that these words mean, if it has begun and this host sees its folder.
fn run_of(arguments: &Node) -> Option<RunFolder> {
    run_meant(&arguments.train.with_flags_as_settings(), this_machine_of_several())
}

/// Who leads a run, if that is not the host that led it first.
fn led_by_another(run: &RunFolder) -> Option<LeadingHost> {
    LeadingHost::of(&run.path).filter(|leader| leader.host > 0 && !RunLock::is_free(&run.path))
}

/// Who has taken the lead of the run that this host wanted to lead, if somebody has: it says so a moment after it has the lock.
fn overtaken(arguments: &Node) -> Option<(RunFolder, LeadingHost)> {
    let (run, begun) = (run_of(arguments)?, Instant::now());
    loop {
        if let Some(leader) = led_by_another(&run) {
            return Some((run, leader));
        }
        if RunLock::is_free(&run.path) || begun.elapsed() >= SAYS_SO {
            return None;
        }
        std::thread::sleep(SAYS_SO / 100);
    }
}

/// Joins the run that this host led before, as one of the others.
fn rejoin(
    arguments: &Node,
    brought: Option<Brought>,
    hosts: &HostsPlan,
    run: &RunFolder,
    leader: LeadingHost,
) -> Result<ExitCode, CliError> {
    // Ranks that the supervisor of this host left are none of the run any more.
    if let Some(left) = LeftKeeper::of(&run.path) {
        left.name.dismiss().map_err(|error| {
            CliError::failed(format!("cannot end the ranks that the run before left: {error}"))
        })?;
    }
    let mut arguments = arguments.clone();
    (arguments.train.resume, arguments.train.profile) = (None, false);
    join(&arguments, brought, hosts, Some(leader))
}

/// Joins a run; `leader` leads it, where that is not the host that `--master` names first.
fn join(
    arguments: &Node,
    brought: Option<Brought>,
    hosts: &HostsPlan,
    leader: Option<LeadingHost>,
) -> Result<ExitCode, CliError> {
    let train = &arguments.train;
    if train.resume.is_some() || train.fork {
        return Err(CliError::usage(
            "--resume and --fork are for the host of rank 0: it has the folder of the run",
        )
        .hint("leave them out here: what the run goes on with comes from there"));
    }
    if train.profile {
        let problem = CliError::usage("--profile is for the host of rank 0: it tells the others");
        return Err(
            problem.hint("leave it out here; docs/guide/hosts.md says which ranks of other hosts are in it")
        );
    }
    let voice = Voice::of(train.output);
    let master = &leader.map_or_else(|| hosts.shown_master.clone(), |leader| leader.at.to_string());
    voice.say(&format!("dtrain {}", crate::arguments::VERSION));
    if let Some(leader) = leader {
        voice.say(&format!("  host {} leads the run now: this host joins it", leader.host));
    }
    voice.say(&format!("  node     {} of {}, calling {master}", hosts.rank, hosts.nodes));
    let callee = Callee {
        names: hosts.names.clone(),
        elsewhere: leader.map(|leader| leader.at),
        masters: hosts.masters.clone(),
        from: hosts.bind.filter(|ip| !ip.is_unspecified()),
        identity: hosts.identity.clone(),
        node: NodeId(hosts.rank),
    };
    let boot = crate::random::u64()
        .map_err(|error| CliError::failed(format!("cannot draw a random number: {error}")))?;
    let patience = patience(arguments)?;
    let uplink = Uplink::join(callee, BootId(boot), patience).map_err(|error| not_joined(error, hosts))?;
    if let Some(offset) = uplink.clock() {
        voice.say(&clock_line(offset, &hosts.shown_master));
    }
    let plan = host_plan(arguments, brought, hosts, &uplink)?;
    let waits = plan.join_timeout.max(plan.timeouts.master);
    let mut shown = show(voice, hosts.rank, master.clone());
    let end = uplink.serve(plan, move |news| shown(&news));
    let end = end.map_err(|error| CliError::failed(format!("cannot serve the run: {error}")))?;
    conclude(end, voice, hosts, waits)
}

/// How long the first host is waited for: what this host was told, since the run's own word is not known yet.
fn patience(arguments: &Node) -> Result<Duration, CliError> {
    let given: Vec<&String> =
        arguments.train.settings.overrides.iter().filter(|word| word.starts_with("join_timeout=")).collect();
    let config = match &arguments.train.settings.file {
        // Read whole, so that a mistake in the file is told before anybody is called.
        Some(_) => crate::request::settings(&arguments.train.settings, this_machine_of_several())?,
        None => Config::load(None, &given, this_machine_of_several())?,
    };
    Ok(config.world.join_timeout)
}

/// What this host brings into the run that it joined.
fn host_plan(
    arguments: &Node,
    brought: Option<Brought>,
    hosts: &HostsPlan,
    uplink: &Uplink,
) -> Result<HostConfig, CliError> {
    let foreign = |what: String| CliError::failed(format!("the run at {}: {what}", hosts.shown_master));
    let mut run = RunSetup::read(uplink.setup()).map_err(foreign)?;
    let settings = &arguments.train.settings;
    let config = Config::of_host(
        run.source(),
        settings.file.as_deref(),
        &settings.overrides,
        this_machine_of_several(),
    )?;
    if config.world.isolation == Isolation::Thread {
        let problem = config.problem("isolation", "the ranks of several hosts are processes");
        return Err(problem.hint("leave it out, or write isolation=process").into());
    }
    let timeouts = config.world.timeouts(HostCount::Several).map_err(|error| foreign(error.to_string()))?;
    let chosen = choose_here(&config, ON_SEVERAL_HOSTS)?;
    let mut plan = Plan::open(&config, brought)?.with_frozen(run.frozen_source());
    let offloaded = plan.choose_offload(chosen.cuda().as_ref())?;
    let Prototype { replica, external, frozen: _ } = plan.prototype(&chosen)?;
    let voice = Voice::of(arguments.train.output);
    if let (Some((_, found)), Some(expected)) = (&external, &run.external) {
        expected.check(found).map_err(CliError::usage)?;
    }
    if plan.keeps_on_gpus() {
        chosen.prepare(&config, |words| voice.say(words))?;
    }
    offloaded.iter().for_each(|words| voice.say(words));
    let own = uplink.own_address().map_err(|error| foreign(error.to_string()))?;
    let listen = hosts.bind.unwrap_or(own);
    hosts.check_ports(listen, config.world.ranks)?;
    if let Some(of_hosts) = &mut run.hosts {
        let samples = plan.opened.train.len();
        if of_hosts.samples != samples {
            return Err(CliError::usage(format!(
                "the data of this host has {samples} training samples, that of the run {}",
                of_hosts.samples
            ))
            .hint("every host needs the same data, byte for byte"));
        }
        of_hosts.mesh = Some(MeshAddress { listen, reached_at: reached_at(listen, own), ports: hosts.ports });
    }
    run.yaml = config.to_yaml();
    run.gpus = chosen.cuda();
    let ranks = config.world.ranks;
    let micro_batches = plan.batches.micro_batches();
    let slot = replica.about().slot_len(micro_batches);
    let geometry = Geometry::bound(slot, micro_batches, plan.config.reduce);
    let memory = |problem| CliError::failed(problem).hint("fewer ranks or a smaller model need less memory");
    let (backend, _) =
        ChosenBackend::choose(&plan.told_places(&config), HostCount::Several, chosen.cuda().as_ref())?;
    let arena = match &backend {
        ChosenBackend::Host => Some(new_arena(WorldSize(ranks), geometry, None).map_err(memory)?),
        ChosenBackend::Nccl(_) => None,
    };
    Ok(HostConfig {
        ranks,
        isolation: Lives::Process(
            plan.external().map_or_else(|| backend.program(), |program| program.rank_program()),
        ),
        arena,
        setup: run.to_setup(),
        timeouts,
        join_timeout: config.world.join_timeout,
        listens_to_signals: early_signals::no_longer,
        // The sums of a ring are not made a second time: its hosts cannot be taken over.
        succession: (config.world.standby && config.reduce == Reduce::Exact && run.sees_run_folder())
            .then(|| succession(&run.run_dir, plan.external(), hosts, own)),
    })
}

/// How this host leads where nobody else does.
fn succession(
    run_dir: &Path,
    external: Option<&'static dyn ExternalProgram>,
    hosts: &HostsPlan,
    own: IpAddr,
) -> Succession {
    let program = external.map_or_else(Program::this, |program| program.rank_program());
    let (run, lock, over) = (run_dir.to_owned(), run_dir.to_owned(), run_dir.to_owned());
    let begin_in = run_dir.to_owned();
    let begin = move || {
        Command::new(&program.path)
            .args(&program.arguments)
            .env(SUCCEEDS_RUN, &begin_in)
            .env(SUCCEEDS_AT, own.to_string())
            .stdin(Stdio::null())
            // A terminal that interrupts this host asks it to leave, and not the run to end.
            .process_group(0)
            .spawn()
    };
    Succession {
        listens: Box::new(move || LeadingHost::of(&run).map(|leader| leader.at)),
        is_vacant: Box::new(move || is_vacant(&lock)),
        ended: Box::new(move || ended(&over)),
        begin: Box::new(begin),
        after: BETWEEN_HOSTS * hosts.rank,
    }
}

/// Where nobody leads, hosts have their turn one after the other.
const BETWEEN_HOSTS: Duration = Duration::from_millis(150);

/// How long a host that has the lock of a run may take to say where it listens.
const SAYS_SO: Duration = Duration::from_secs(3);

/// Above this, what two hosts write down does not fit together by eye.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// How far this host's clock is from the first one's, and what suffers if that is far.
fn clock_line(offset: ClockOffset, master: &str) -> String {
    let side = if offset.nanos > 0 { "behind" } else { "ahead of" };
    let (apart, within) = (seconds(offset.apart()), seconds(offset.within));
    if offset.exceeds(CLOCKS_APART) {
        return format!(
            "  warning: the clock of this host is {apart} {side} that of {master} (give or take {within}): times of the \
             two hosts do not fit together, in logs and in traces\n  \
             hint: let something keep both clocks (`dtrain doctor` says who does); a day apart, they refuse each other"
        );
    }
    format!("  clock    {apart} {side} that of {master}, give or take {within}")
}

/// A small time with a unit that fits: from microseconds to seconds.
fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        time if time < 1e-3 => format!("{:.0} us", time * 1e6),
        time if time < 1.0 => format!("{:.1} ms", time * 1e3),
        time => format!("{time:.1} s"),
    }
}

/// Tells people of this host what happens.
fn show(voice: Voice, rank: u32, master: String) -> impl FnMut(&HostNews<'_>) + Send + 'static {
    move |news| {
        voice.say(&match news {
            HostNews::Running { generation, ranks, here } => {
                format!(
                    "  node {rank}: generation {generation} works: {}, {here} of them here",
                    counted(*ranks, "rank")
                )
            }
            HostNews::LinkLost => format!("  node {rank}: the link to {master} is lost; calling again"),
            HostNews::Gone { waits } => {
                format!(
                    "  node {rank}: the supervisor at {master} is gone; the ranks here keep their state and wait for another \
                     one for {waits:.0?} (`dtrain node --rank 0 --resume ...` there)"
                )
            }
            HostNews::Leads => format!("  node {rank}: nobody leads the run: this host is about to"),
            HostNews::LinkBack => format!("  node {rank}: {master} answers again"),
            HostNews::Orphaned { silent } => {
                format!(
                    "  node {rank}: {master} was not heard for {silent:.1?}: the ranks of this host are ended"
                )
            }
            HostNews::Leaving => {
                format!("  node {rank}: leaving after the step in hand; once more to leave at once")
            }
            HostNews::RankOutput { member, line } => format!("  [member {member}] {line}"),
        });
    }
}

fn not_joined(error: UplinkError, hosts: &HostsPlan) -> CliError {
    let message = error.to_string();
    let (what, _) = message.split_once("\nhint:").unwrap_or((&message, ""));
    match error {
        UplinkError::Untrusted(_) => CliError::usage(what.to_owned())
            .hint("all hosts need the same token, and clocks that agree; DTRAIN_TOKEN_FILE names it"),
        UplinkError::NotWanted { .. } => CliError::usage(what.to_owned())
            .hint("each host needs a --rank of its own, below the number that --nodes allows on the first host"),
        UplinkError::Unreachable { .. } => CliError::failed(what.to_owned()).hint(format!(
            "is `dtrain node --rank 0` running, does {} lead to it from here, and does a firewall let UDP through? \
             join_timeout=5m waits longer",
            hosts.shown_master
        )),
        UplinkError::System { .. } => CliError::failed(what.to_owned()),
    }
}

/// Says how the part of this host ended; its exit code.
fn conclude(end: HostEnd, voice: Voice, hosts: &HostsPlan, waits: Duration) -> Result<ExitCode, CliError> {
    let (rank, master) = (hosts.rank, &hosts.shown_master);
    let way_on = "the host of rank 0 has the checkpoints: start it with --resume, and this host as before";
    match end {
        HostEnd::Dismissed(Goodbye { code: 0, why }) => {
            voice.say(&format!("  node {rank}: {why}"));
            Ok(ExitCode::SUCCESS)
        }
        HostEnd::Dismissed(Goodbye { code, why }) => {
            let kind = match code {
                2 => Kind::Usage,
                3 => Kind::NotEnoughRanks,
                130 => Kind::Interrupted,
                _ => Kind::Failed,
            };
            Err(CliError::new(kind, why).hint(format!("the report is on the host of rank 0, {master}")))
        }
        HostEnd::Left => {
            Err(CliError::new(Kind::Interrupted, "this host has left the run; the others go on")
                .hint("start it again to let it join again"))
        }
        HostEnd::Interrupted => Err(CliError::new(Kind::Interrupted, "interrupted")),
        HostEnd::SupervisorGone { silent } => Err(CliError::failed(format!(
            "the supervisor at {master} is lost: its process is gone, and none came in its place for {silent:.1?}"
        ))
        .hint(way_on)),
        HostEnd::SupervisorSilent { silent } => Err(CliError::failed(format!(
            "the supervisor at {master} is lost: it was silent for {silent:.1?}, and this host waits for {waits:?}"
        ))
        .hint(way_on)),
        HostEnd::Unexplained => Err(CliError::failed(format!(
            "the supervisor at {master} ended the run before its last step, and is lost: it did not say why"
        ))
        .hint(format!("what it knew is in the report and the log on the host of rank 0; {way_on}"))),
        HostEnd::SupervisorRestarted => {
            Err(CliError::failed(format!("the supervisor at {master} was started anew"))
                .hint("start this host again: it joins the run that is there now"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_near_is_a_line_and_one_that_is_far_a_warning_with_a_hint() {
        let offset = |ms: i64| ClockOffset { nanos: ms * 1_000_000, within: Duration::from_micros(150) };
        let near = clock_line(offset(-3), "head:29400");
        assert_eq!(near, "  clock    3.0 ms ahead of that of head:29400, give or take 150 us");
        let far = clock_line(offset(4_200), "head:29400");
        assert!(far.contains("warning: the clock of this host is 4.2 s behind that of head:29400"), "{far}");
        assert!(far.contains("hint:") && far.contains("dtrain doctor"), "{far}");
    }
}
