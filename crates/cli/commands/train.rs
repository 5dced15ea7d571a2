//! `dtrain train`: from a command line to a run on this host.
//!
//! Everything that can be wrong with the request is found before the run folder is made.

use super::{print, print_json};
use crate::arguments::Train;
use crate::config::{Config, CudaList, HostCount, Isolation, Oom};
use crate::drill::Described;
use crate::error::CliError;
use crate::external::Brought;
use crate::frozen_parameters::{self, FrozenParameters, FrozenSource};
use crate::gpus::{
    Auto, ByLibraries, Chosen, KeptPins, ON_SEVERAL_HOSTS, by_libraries, choose_here, most_rows,
    this_machine, this_machine_of_several,
};
use crate::hosts::{HostsPlan, Lead};
use crate::kept::LeftKeeper;
use crate::nccl::ChosenBackend;
use crate::plan::{Plan, Prototype};
use crate::rank_setup::left_probe;
use crate::recipe::CUDA;
use crate::report::{Voice, banner, notes_of_examples};
use crate::request::{Place, Request, Start, settings};
use crate::run_folder::RunFolder;
use crate::run_tokenizer;
use crate::session::{self, Predecessor, Session};
use crate::watch::Watchers;
use dtrain_checkpoint::{Check, CheckpointId, Digest, Exported, FileStore, RunLock, Store};
use dtrain_engine::fingerprint::fingerprint;
use dtrain_telemetry::Summary;
use dtrain_types::{Fingerprint, Reduce};

/// The parameters that a fork begins with.
const INITIAL: &str = "initial.safetensors";

/// Trains, with the data and the model of `own` where a program brings them, and with other hosts where there are some:
/// then this is the first of them.
///
/// *Errors*: of the request (kind usage, nothing written), or of the training. *Blocks* for the whole run.
pub fn run(
    arguments: &Train,
    brought: Option<Brought>,
    hosts: Option<&HostsPlan>,
) -> Result<Option<Summary>, CliError> {
    let arguments = &arguments.with_flags_as_settings();
    let machine = if hosts.is_some() { this_machine_of_several() } else { this_machine() };
    if arguments.print_config && arguments.resume.is_none() {
        return print(&settings(&arguments.settings, machine)?.to_yaml()).map(|()| None);
    }
    let request = Request::new(arguments, machine)?;
    if arguments.print_config {
        return print(&request.config.to_yaml()).map(|()| None);
    }
    let several = if hosts.is_some() { HostCount::Several } else { HostCount::One };
    let chosen = match choose_here(&request.config, auto(&request, several)) {
        // The ranks of this host are not beside it: whatever they have, it needs none.
        Err(_) if hosts.is_some_and(|hosts| hosts.succeeds.is_some()) => Chosen::Cpu { why: None },
        chosen => chosen?,
    };
    let frozen = match (&request.place, &request.start) {
        (Place::Existing(run), Start::Resume(id)) => FrozenSource::of(&run.path).with(frozen_of(run, *id)),
        (Place::Existing(run), _) => FrozenSource::of(&run.path),
        (Place::Named(_) | Place::Numbered(_), _) => FrozenSource::default(),
    };
    let mut plan = Plan::open(&request.config, brought)?.with_frozen(frozen.clone());
    // A program of its own knows how to use a GPU.
    let lacking = if plan.external().is_some() { Ok(()) } else { plan.check_device() };
    let chosen = chosen.unless(lacking, &request.config)?;
    let offloaded = plan.choose_offload(chosen.cuda().as_ref())?;
    let placed = plan.told_places(&request.config);
    let (backend, carried_why) = ChosenBackend::choose(&placed, several, chosen.cuda().as_ref())?;
    plan.carried_by(&backend);
    let in_shards = plan.choose_state(&chosen)?;
    let (backend, carried_why) = match plan.backend() == backend.kind() {
        true => (backend, carried_why),
        false => ChosenBackend::of_windows_without_room(),
    };
    let mut prototype = plan.prototype(&chosen)?;
    if arguments.describe {
        return print_json(&Described::of(&plan, prototype.replica.as_ref())?.to_json()).map(|()| None);
    }
    let voice = Voice::of(arguments.output);
    // Where a program makes the passes, dtrain keeps its state there at most.
    let stages_on = chosen.cuda().filter(|_| plan.external().is_none());
    if stages_on.is_some() {
        plan.check_device()?;
    }
    if plan.keeps_on_gpus() {
        chosen.prepare(&plan.config, |words| voice.say(words))?;
    }
    let shrunk = match (&stages_on, plan.config.oom) {
        (Some(list), Oom::Shrink) => shrink(&plan, list, &request.start)?,
        _ => None,
    };
    if let Some((config, _)) = &shrunk {
        plan = Plan::open(config, brought)?.with_frozen(frozen);
        plan.carried_by(&backend);
        prototype = plan.prototype(&chosen)?;
    }
    let (by_libraries, libraries) = match &stages_on {
        Some(list) if hosts.is_none() => libraries(&plan, list, &request, |words| voice.say(words))?,
        Some(_) | None => Default::default(),
    };
    let lead = match hosts {
        Some(hosts) => Some(lead(hosts, &plan.config)?),
        None => {
            plan.config.check_one_host()?;
            None
        }
    };
    let watchers = match &lead {
        Some(lead) if lead.succeeds.is_some() => {
            let (watchers, problems) = Watchers::open_what_can_be(&plan.config);
            problems.iter().for_each(|problem| voice.say(&format!("warning: {problem}")));
            watchers
        }
        _ => Watchers::open(&plan.config)?,
    };
    let run = make_folder(&request.place)?;
    let predecessor = predecessor(&run, &plan, several);
    let begun = match &request.start {
        Start::Fork { from, checkpoint, updates } => fork(&mut plan, &run, (from, *checkpoint), *updates)
            .and_then(|()| {
                prototype = plan.prototype(&chosen)?;
                Ok(())
            }),
        Start::Fresh | Start::Resume(_) => Ok(()),
    };
    let begun = begun.and_then(|()| write_config(&run, &plan, &request.place)).and_then(|lock| {
        by_libraries.keep(&run.path)?;
        let parent = match &request.start {
            Start::Fork { from, .. } => Some(from),
            Start::Fresh | Start::Resume(_) => None,
        };
        run_tokenizer::keep(&run, &plan.config, parent)?;
        let frozen = keep_frozen(&run, &mut prototype)?;
        let program = plan.external();
        program.map_or(Ok(()), |program| program.begun(&run.path)).map_err(CliError::failed)?;
        Ok((lock, frozen))
    });
    let (lock, frozen) = begun.inspect_err(|_| {
        // A folder that was made for nothing goes away again; what a refused run leaves is its error.
        if !matches!(request.place, Place::Existing(_)) {
            let _ = std::fs::remove_dir_all(&run.path);
        }
    })?;
    let succeeds = lead.as_ref().is_some_and(|lead| lead.succeeds.is_some());
    if !succeeds {
        voice.say(&format!("dtrain {}", crate::arguments::VERSION));
    }
    let Prototype { replica, external, frozen: _ } = prototype;
    let (here, agreement) = match (external, chosen.cuda()) {
        (external, Some(_)) => (Here::Gpu, external.map(|(_, agreement)| agreement)),
        (Some((fingerprint, agreement)), None) => (Here::External(fingerprint), Some(agreement)),
        (None, None) => (Here::Cpu, None),
    };
    if !succeeds {
        voice.say(&banner(&plan, replica.as_ref(), Some((&run, &request.start)), (machine, &chosen)));
    }
    let resume = match request.start {
        Start::Resume(id) => Some(id),
        Start::Fresh | Start::Fork { .. } => None,
    };
    let other_bits = match resume {
        Some(id) => note_of_other_bits(&run, id, &plan, here)?,
        None => None,
    };
    let longer = request.shorter.as_ref().zip(resume).map(|(before, id)| note_of_length(&plan, before, id));
    let carried = backend.notes(several);
    let shrunk = shrunk.map(|(_, note)| note);
    let again = note_of_beginning_again(&request, predecessor);
    let begins = matches!(request.start, Start::Fresh);
    let examples = plan.opened.examples.as_ref().map(notes_of_examples).unwrap_or_default();
    let tokenizer = if begins { run_tokenizer::note_of_another(&plan.config) } else { None };
    for note in request
        .notes
        .iter()
        .chain(&again)
        .chain(&tokenizer)
        .chain(&examples)
        .chain(&in_shards)
        .chain(&shrunk)
        .chain(&other_bits)
        .chain(&longer)
        .chain(&chosen.note())
        .chain(&carried)
        .chain(&carried_why)
        .chain(&offloaded)
        .chain(&libraries)
    {
        voice.say(&format!("  note: {note}"));
    }
    if let (Some(hosts), Some(lead)) = (hosts, &lead) {
        let (nodes, at) = (lead.nodes, lead.gateway.local_addr());
        voice.say(&if succeeds {
            format!("  node {}: this host leads the run from now on (listening on {at})", hosts.rank)
        } else {
            format!("  hosts    waiting for {nodes} in all, at {} (listening on {at})", hosts.shown_master)
        });
    }
    if let Some(url) = watchers.metrics_url() {
        voice.say(&format!("  metrics  {url}"));
    }
    let (cuda, gpus, json) = (chosen.cuda(), chosen.watch(), arguments.output.json);
    let session = Session {
        plan,
        replica,
        backend,
        agreement,
        frozen,
        run,
        resume,
        lock,
        predecessor,
        lead,
        cuda,
        by_libraries,
        gpus,
        watchers,
        json,
    };
    session::run(session, voice).map(Some)
}

/// What libraries do on these GPUs, and what is to be said of it. A run that goes on keeps its arithmetic.
///
/// *Errors*: as [`Plan::cuda_replica`]; what the run did before cannot be read. *Blocks* as [`by_libraries`].
fn libraries(
    plan: &Plan,
    list: &CudaList,
    request: &Request,
    tell_people: impl Fn(&str),
) -> Result<(ByLibraries, Vec<String>), CliError> {
    let (mut wanted, mut notes) = (plan.wanted()?, Vec::new());
    // Also one that has no checkpoint yet: its ranks may live.
    let before = match &request.place {
        Place::Existing(run) => match KeptPins::of_run(&run.path)? {
            Some(before) => {
                notes = before.keep_own(&mut wanted);
                before
            }
            None if wanted.is_empty() => KeptPins::default(),
            None => {
                let note = "large products, convolutions and attention by dtrain's own kernels, as this run was begun";
                return Ok((ByLibraries::default(), vec![note.to_owned()]));
            }
        },
        _ => KeptPins::default(),
    };
    let (libraries, told) = by_libraries(list, &wanted, before, tell_people);
    notes.extend(told);
    Ok((libraries, notes))
}

/// What `devices: auto` may come to: a run that goes on keeps its arithmetic.
fn auto(request: &Request, hosts: HostCount) -> Auto {
    match (&request.start, &request.place) {
        _ if hosts == HostCount::Several => ON_SEVERAL_HOSTS,
        (Start::Resume(id), Place::Existing(run))
            if fingerprint_of(run, *id).is_some_and(|then| is_of_cpu(&then)) =>
        {
            Auto::Cpu("this run was begun on a CPU, whose bits it keeps; devices=all trains there")
        }
        _ => Auto::ByTest,
    }
}

/// Whether a CPU computed what has this fingerprint. That of a program says so itself, where it says anything.
fn is_of_cpu(fingerprint: &str) -> bool {
    match fingerprint.starts_with("torch-") {
        true => fingerprint.contains("-cpu-"),
        false => !fingerprint.starts_with(CUDA),
    }
}

/// What a checkpoint was computed by. One that cannot be read is the ranks' to report: they load it.
fn fingerprint_of(run: &RunFolder, id: CheckpointId) -> Option<String> {
    FileStore::new(&run.path)
        .open(id, Check::Sizes)
        .ok()
        .map(|checkpoint| checkpoint.into_manifest().fingerprint)
}

/// The configuration with a micro-batch that the GPUs have room for, and what to say of it; nothing if they have room for the one
/// that is asked for.
///
/// *Errors*: they have room for none; a run that has begun with a larger one.
fn shrink(plan: &Plan, list: &CudaList, start: &Start) -> Result<Option<(Config, String)>, CliError> {
    let (config, asked) = (&plan.config, plan.config.batch.micro);
    // The child that looks is told what carries the gradients.
    let Some((rows, gpu)) = most_rows(&config.carried_by(plan.backend()), list)? else {
        let problem = config.problem("micro_batch", format!("{list} has no room for a single sample"));
        return Err(problem
            .hint("a smaller model needs less; nvidia-smi shows who else uses these GPUs")
            .into());
    };
    if rows == asked {
        return Ok(None);
    }
    if let Start::Resume(_) = start {
        let message = format!("cuda:{gpu} has room for {rows}, and this run has begun with {asked}");
        let hint =
            format!("its bits would change: --fork micro_batch={rows} begins another run from its state");
        return Err(config.problem("micro_batch", message).hint(hint).into());
    }
    let note = format!(
        "oom: shrink: cuda:{gpu} has no room for micro_batch={asked}; it is {rows} now, with other bits than those of {asked}"
    );
    Ok(Some((config.with_micro_batch(rows), note)))
}

/// Opens the port for the other hosts, once it is clear that the configuration can be one of several hosts.
fn lead(hosts: &HostsPlan, config: &Config) -> Result<Lead, CliError> {
    if config.batch.derived {
        let problem = config.problem("batch_size", "it is per rank, and hosts may come and go");
        return Err(problem.hint("give global_batch and micro_batch instead").into());
    }
    if config.world.isolation == Isolation::Thread {
        let problem = config.problem("isolation", "the ranks of several hosts are processes");
        return Err(problem.hint("leave it out, or write isolation=process").into());
    }
    let timeouts = config
        .world
        .timeouts(HostCount::Several)
        .map_err(|error| CliError::usage(error.to_string()).hint("detect=1s is the default"))?;
    hosts.lead(timeouts, config.world.ranks)
}

/// The first thing that is written: the folder of the run.
fn make_folder(place: &Place) -> Result<RunFolder, CliError> {
    match place {
        Place::Named(path) => RunFolder::create_named(path.clone()),
        Place::Numbered(base) => RunFolder::create_numbered(base),
        Place::Existing(run) => Ok(run.clone()),
    }
}

/// Whether a supervisor died in the middle of this very run, whose ranks may wait for the next one with the state: those of this host, if
/// somebody holds them, or those of other hosts.
fn predecessor(run: &RunFolder, plan: &Plan, hosts: HostCount) -> Predecessor {
    let stored = plan.config.stored(&run.name).to_yaml();
    let same = run.config_text().is_ok_and(|text| text == stored);
    let left = match hosts {
        HostCount::Several => left_probe(&run.path).is_some(),
        HostCount::One => LeftKeeper::of(&run.path).is_some_and(|left| left.is_ours),
    };
    // The sums of a ring depend on who takes part: such a step is not made a second time.
    match same && left && plan.config.reduce == Reduce::Exact {
        true => Predecessor::Died,
        false => Predecessor::None,
    }
}

/// What becomes of a run that has no state. Where its ranks may live it goes on, whatever its checkpoints are.
fn note_of_beginning_again(request: &Request, predecessor: Predecessor) -> Option<String> {
    match (&request.place, &request.start, predecessor) {
        (Place::Existing(run), Start::Fresh, Predecessor::None) => {
            Some(format!("{} has no checkpoint yet and starts again", run.path.display()))
        }
        _ => None,
    }
}

/// What becomes of the schedule of a run that is made longer.
fn note_of_length(plan: &Plan, before: &Config, id: CheckpointId) -> String {
    let next = id.step.next();
    let rate = |config: &Config| plan.learning_rate(config).lr(next);
    let (was, is) = (before.length, plan.config.length);
    format!(
        "{is} instead of {was}: from step {next} on the learning rate is that of the longer schedule, {:.2e} instead of {:.2e} \
         there; the result is not that of a run that was begun with {is}",
        rate(&plan.config),
        rate(before),
    )
}

/// What the ranks of this host compute with.
enum Here {
    /// Stages on the CPU.
    Cpu,
    /// Stages, or a program of its own, on a GPU.
    Gpu,
    /// A program of its own on the CPU.
    External(Fingerprint),
}

/// What to say when a run goes on with another arithmetic than its checkpoint was computed with.
fn note_of_other_bits(
    run: &RunFolder,
    id: CheckpointId,
    plan: &Plan,
    here: Here,
) -> Result<Option<String>, CliError> {
    let Some(then) = fingerprint_of(run, id) else { return Ok(None) };
    let (differs, now) = match here {
        // Only a rank can tell which arithmetic its GPU has; that it is not the CPU's is certain.
        Here::Gpu => (is_of_cpu(&then), "a GPU".to_owned()),
        Here::Cpu => {
            let now = fingerprint(&plan.cpu()?).to_string();
            (arithmetic(&then) != arithmetic(&now), now)
        }
        // What a program computes is tried by the ranks alone.
        Here::External(now) => (then.split(' ').next() != Some(&now.isa), now.isa),
    };
    Ok(differs.then(|| {
        format!(
            "checkpoint {id} was computed by {then}, this is {now}: the bits of the result will differ from \
             those of a run that never stopped"
        )
    }))
}

/// A fingerprint as manifests show it, without the instruction set, which is no part of the result.
fn arithmetic(fingerprint: &str) -> &str {
    fingerprint.split_once(' ').map_or(fingerprint, |(_, rest)| rest)
}

/// Writes the configuration into the folder of a run; the lock of a folder that was there before, which is ours from now on.
fn write_config(run: &RunFolder, plan: &Plan, place: &Place) -> Result<Option<RunLock>, CliError> {
    // Another process may be working where the run lies: its file is not ours to change.
    let lock = matches!(place, Place::Existing(_)).then(|| session::lock(&run.path)).transpose()?;
    let text = plan.config.stored(&run.name).to_yaml();
    // What lies there already is left alone when it says the same.
    if run.config_text().ok().as_deref() != Some(text.as_str()) {
        run.write_config(&text)?;
    }
    Ok(lock)
}

/// The digest of the parameters that stay as they are, as a checkpoint knows it. One that cannot be read is the ranks' to report.
fn frozen_of(run: &RunFolder, id: CheckpointId) -> Option<Digest> {
    FileStore::new(&run.path).open(id, Check::Sizes).ok()?.into_manifest().frozen
}

/// Keeps the parameters that stay as they are in the folder of their run, if they do not lie there yet, and has the replica read them there. Gives
/// their digest.
fn keep_frozen(run: &RunFolder, prototype: &mut Prototype) -> Result<Option<Digest>, CliError> {
    let (layout, values) = (&prototype.replica.about().layout, std::mem::take(&mut prototype.frozen));
    if values.is_empty() {
        return Ok(None);
    }
    if FrozenSource::of(&run.path).run.is_none() {
        frozen_parameters::keep(&run.path, layout, &values)?;
    }
    let kept = FrozenParameters::read(&run.path)?;
    let values = kept.of(layout)?;
    let given = prototype.replica.set_frozen(values);
    given.map_err(|error| CliError::failed(error.to_string()))?;
    Ok(Some(kept.digest))
}

/// Begins a new run with the parameters and running statistics of a checkpoint of another one. They become a file of
/// the new run, named by its configuration: so it stands on its own. Steps begin anew, and so does the optimizer's state unless
/// it is kept, having seen so many updates.
fn fork(
    plan: &mut Plan,
    run: &RunFolder,
    (from, id): (&RunFolder, CheckpointId),
    updates: Option<u64>,
) -> Result<(), CliError> {
    let shown = format!("checkpoint {id} of {}", from.path.display());
    let fail = |error: &(dyn std::error::Error + 'static)| {
        CliError::failed(format!("cannot fork {shown}")).because(error)
    };
    let checkpoint = FileStore::new(&from.path).open(id, Check::Digests).map_err(|damage| fail(&damage))?;
    let folder = std::fs::canonicalize(&run.path).map_err(|error| fail(&error))?;
    let file = folder.join(INITIAL);
    let what = if updates.is_some() { Exported::State } else { Exported::Model };
    dtrain_checkpoint::export(&checkpoint, &file, what).map_err(|error| fail(&error))?;
    plan.config = plan.config.starting_from(&file, updates.unwrap_or(0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Digest, Fingerprint};

    #[test]
    fn a_fingerprint_says_whether_it_is_a_cpus() {
        for (fingerprint, is_cpus) in [
            ("avx512 kernels-1 self-test-7", true),
            ("cuda:sm_90a kernels-1", false),
            ("torch-2.9.1+cu130-cpu-AVX512-1t kernels-0", true),
            ("torch-2.9.1+cu130-NVIDIA-H200-cuda-1t kernels-3", false),
            ("torch-whatever-it-computes kernels-0", false),
        ] {
            assert_eq!(is_of_cpu(fingerprint), is_cpus, "{fingerprint}");
        }
    }

    #[test]
    fn a_fingerprint_is_compared_by_kernels_and_self_test_and_not_by_instruction_set() {
        let shown = |isa: &str, kernel_revision, first| {
            let self_test = Digest([first; 32]);
            Fingerprint { isa: isa.into(), self_test, kernel_revision }.to_string()
        };
        let one = shown("avx512", 1, 7);
        assert_eq!(arithmetic(&one), arithmetic(&shown("scalar", 1, 7)));
        assert_ne!(arithmetic(&one), arithmetic(&shown("avx512", 2, 7)));
        assert_ne!(arithmetic(&one), arithmetic(&shown("avx512", 1, 8)));
    }
}
