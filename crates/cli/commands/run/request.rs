//! From the words of `dtrain run` to what is to be started. Nothing is started or written here, and everything
//! that can be wrong with the request is found here.

use crate::arguments::{Processes, RunProgram};
use crate::error::CliError;
use crate::gpus::{hidden_by, seen_by_programs, this_machine};
use crate::hosts::identity;
use dtrain_launch::{Console, Hosts, Launch, Master, Meeting};
use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use std::env::{split_paths, var, var_os};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// torchrun's own, where somebody has to name a port on all hosts.
const DEFAULT_PORT: u16 = 29_500;
/// torchrun's own.
const DEFAULT_GRACE_SECONDS: u32 = 30;
/// Descriptors that the supervisor needs for a rank (a pidfd, two pipes, two log files), and for itself.
const DESCRIPTORS: (u64, u64) = (5, 64);

/// Understands a command line.
///
/// *Errors*: of kind usage; nothing is started.
pub fn read(run: &RunProgram) -> Result<Launch, CliError> {
    let processes = processes(run.nproc)?;
    let hosts = hosts(run)?;
    let launch = Launch {
        program: program(run)?,
        processes,
        hosts,
        master: master(run, hosts)?,
        restarts: run.max_restarts,
        grace: Duration::from_secs(run.shutdown_timeout.unwrap_or(DEFAULT_GRACE_SECONDS).into()),
        run_id: run_id(run)?,
        role: run.role.clone(),
        logs: run.log_dir.clone(),
        console: console(run, processes, hosts)?,
    };
    check_descriptors(launch.processes)?;
    Ok(launch)
}

/// How the hosts of a group meet, where they do: to start again together they must, and with a token they can.
///
/// *Errors*: no token, or a text that is none; of kind usage.
pub fn meeting(run: &RunProgram, launch: &Launch) -> Result<Option<Meeting>, CliError> {
    let has_token = ["DTRAIN_TOKEN", "DTRAIN_TOKEN_FILE"].iter().any(|name| var_os(name).is_some());
    if launch.hosts.count == 1 || (launch.restarts == 0 && !has_token) {
        return Ok(None);
    }
    Ok(Some(Meeting {
        identity: identity()?,
        first: (launch.master.address.clone(), launch.master.port.unwrap_or(DEFAULT_PORT)),
        patience: Duration::from_secs(run.join_timeout.into()),
    }))
}

fn check_descriptors(processes: u32) -> Result<(), CliError> {
    let needed = u64::from(processes) * DESCRIPTORS.0 + DESCRIPTORS.1;
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => {
            let message = format!("{processes} processes need {needed} open files, {allowed} are allowed");
            Err(CliError::usage(message)
                .hint(format!("`ulimit -n {needed}` in this shell, or a smaller --nproc")))
        }
        _ => Ok(()),
    }
}

fn processes(asked: Processes) -> Result<u32, CliError> {
    match (asked, seen_by_programs()) {
        (Processes::Count(count), _) => Ok(count),
        (Processes::Gpu, 0) => Err(CliError::usage("--nproc gpu: this host has no visible GPU")
            .hint(format!("--nproc cpu starts a process per core; look at {}", hidden_by()))),
        (Processes::Gpu | Processes::Auto, gpus @ 1..) => Ok(gpus),
        (Processes::Cpu | Processes::Auto, _) => Ok(this_machine().cores),
    }
}

/// The program as it is executed: what to put before a script, and whether all of it is there.
fn program(run: &RunProgram) -> Result<Vec<OsString>, CliError> {
    let first = &run.program[0];
    let is_script = first.as_encoded_bytes().ends_with(b".py") && !run.no_python;
    if !is_script && !run.module {
        check_program(first)?;
        return Ok(run.program.clone());
    }
    let python = var_os("PYTHON_EXEC").unwrap_or_else(|| "python3".into());
    check_program(&python)?;
    if is_script && !run.module && !Path::new(first).is_file() {
        return Err(CliError::usage(format!("there is no file {}", first.to_string_lossy()))
            .hint("a first word that ends in .py is a Python script; its path counts from this folder"));
    }
    let mut words = vec![python, "-u".into()];
    words.extend(run.module.then(|| "-m".into()));
    words.extend(run.program.iter().cloned());
    Ok(words)
}

/// *Errors*: the system would find no program under this name, or may not execute it.
fn check_program(name: &OsStr) -> Result<(), CliError> {
    let shown = name.to_string_lossy();
    if name.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(name);
        return match (path.is_file(), access(path, Access::EXEC_OK)) {
            (true, Ok(())) => Ok(()),
            (true, Err(_)) => Err(CliError::usage(format!("{shown} is not executable"))
                .hint(format!("`chmod +x {shown}`, or put its interpreter before it"))),
            (false, _) if path.is_dir() => {
                Err(CliError::usage(format!("{shown} is a folder")).hint("name the program in it"))
            }
            (false, _) => {
                Err(CliError::usage(format!("there is no program {shown}")).hint("its path is wrong"))
            }
        };
    }
    let folders = var_os("PATH").unwrap_or_default();
    let executable = |path: PathBuf| path.is_file() && access(&path, Access::EXEC_OK).is_ok();
    if split_paths(&folders).any(|folder| executable(folder.join(name))) {
        return Ok(());
    }
    let hint = match Path::new(name).is_file() {
        true => format!("there is one in this folder: write ./{shown}"),
        false if shown.starts_with('-') => "flags of dtrain run stand before the program".to_owned(),
        false => "no folder of PATH has it".to_owned(),
    };
    Err(CliError::usage(format!("there is no program {shown}")).hint(hint))
}

/// A number that a launcher of jobs left in a variable.
fn number(name: &str) -> Result<Option<u32>, CliError> {
    let Ok(text) = var(name) else { return Ok(None) };
    let wrong = |_| {
        CliError::usage(format!("{name} is {text:?}: expected a whole number"))
            .hint("unset it, or give the flag that it stands for")
    };
    text.parse().map(Some).map_err(wrong)
}

fn hosts(run: &RunProgram) -> Result<Hosts, CliError> {
    let asked = run.nodes.clone().or_else(|| var("PET_NNODES").ok());
    let count = match &asked {
        Some(text) => node_count(text)?,
        // Inside a batch job of many hosts that does not start us on each of them there is a count, but no number.
        None => match (number("SLURM_NNODES")?, number("SLURM_NODEID")?) {
            (Some(count), Some(_)) => count,
            _ => 1,
        },
    };
    if count == 1 {
        return match run.node_rank {
            None | Some(0) => Ok(Hosts { count, this: 0 }),
            Some(this) => Err(out_of_range(this, count)),
        };
    }
    if run.standalone {
        let message = format!("--standalone means one host, and there are {count}");
        return Err(CliError::usage(message).hint("leave one of the two out"));
    }
    let this = match run.node_rank {
        Some(this) => Some(this),
        None => match number("PET_NODE_RANK")? {
            Some(this) => Some(this),
            None => number("SLURM_NODEID")?,
        },
    };
    match this {
        Some(this) if this < count => Ok(Hosts { count, this }),
        Some(this) => Err(out_of_range(this, count)),
        None => Err(CliError::usage(format!("which of the {count} hosts is this"))
            .hint("--node-rank 0 on the first, 1 on the next, and so on")),
    }
}

fn out_of_range(this: u32, count: u32) -> CliError {
    CliError::usage(format!("--node-rank {this} is out of range for {count} hosts"))
        .hint(format!("it counts from 0 to {}; --nodes says how many there are", count - 1))
}

/// `2`, or torchrun's `2:2`.
fn node_count(text: &str) -> Result<u32, CliError> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    match (least.parse::<u32>(), most.parse::<u32>()) {
        (Ok(least @ 1..=65_536), Ok(most)) if least == most => Ok(least),
        (Ok(least @ 1..), Ok(most)) if least < most => {
            Err(CliError::usage(format!("--nodes {text}: hosts cannot come and go under `dtrain run`"))
                .hint("give one number"))
        }
        _ => Err(CliError::usage(format!("--nodes {text}: expected a whole number from 1 to 65536"))
            .hint("--nodes 1 is this host alone")),
    }
}

fn master(run: &RunProgram, hosts: Hosts) -> Result<Master, CliError> {
    if hosts.count == 1 {
        // A fresh port is worth more here than one from the environment, which torchrun does not read either.
        let address = run.master_addr.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
        return Ok(Master { address, port: run.master_port });
    }
    let backend = run.rdzv_backend.as_deref().unwrap_or("static");
    if backend != "static" {
        return Err(CliError::usage(format!("--rdzv-backend {backend} is not supported with many hosts"))
            .hint("tell each host --node-rank R and --master-addr ADDR instead"));
    }
    let endpoint = run.rdzv_endpoint.as_deref().map(|text| text.rsplit_once(':').unwrap_or((text, "")));
    let named = run.master_addr.clone().or_else(|| endpoint.map(|(address, _)| address.to_owned()));
    let Some(address) = named.or_else(|| var("MASTER_ADDR").ok()).filter(|address| !address.is_empty())
    else {
        let message =
            format!("host {} of {} does not know the first host's address", hosts.this, hosts.count);
        return Err(
            CliError::usage(message).hint("--master-addr ADDR, or MASTER_ADDR, the same on each host")
        );
    };
    let given = endpoint.map(|(_, port)| port).filter(|port| !port.is_empty()).map(str::to_owned);
    let port = match (run.master_port, given.or_else(|| var("MASTER_PORT").ok())) {
        (Some(port), _) => port,
        (None, Some(text)) => text.parse().map_err(|_| {
            CliError::usage(format!("the master port {text:?} is not a number from 1 to 65535"))
                .hint("--master-port PORT, the same on each host")
        })?,
        (None, None) => DEFAULT_PORT,
    };
    Ok(Master { address, port: Some(port) })
}

fn run_id(run: &RunProgram) -> Result<String, CliError> {
    match &run.run_id {
        Some(id) => Ok(id.clone()),
        None => match crate::random::u64() {
            Ok(number) => Ok(format!("{number:016x}")),
            Err(error) => Err(CliError::failed("cannot draw a random number").because(&error)),
        },
    }
}

fn console(run: &RunProgram, processes: u32, hosts: Hosts) -> Result<Console, CliError> {
    if run.redirects > 0 && run.log_dir.is_none() {
        return Err(CliError::usage("--redirects keeps output off the console, and no file would have it")
            .hint("--log-dir DIR says where the files go"));
    }
    let wrong = run.local_ranks_filter.iter().flatten().find(|rank| **rank >= processes);
    if let Some(rank) = wrong {
        return Err(CliError::usage(format!(
            "--local-ranks-filter names rank {rank}, and there are {processes}"
        ))
        .hint(format!("local ranks count from 0 to {}", processes - 1)));
    }
    let alone = processes == 1 && hosts.count == 1;
    let usual = if alone { "" } else { "[rank ${rank}]: " };
    Ok(Console {
        prefix: run.log_line_prefix_template.as_deref().unwrap_or(usual).replace("${role_name}", &run.role),
        shown: [run.redirects & 1 == 0, run.redirects & 2 == 0],
        ranks: run.local_ranks_filter.clone(),
    })
}
