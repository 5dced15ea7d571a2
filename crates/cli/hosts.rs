//! Several hosts, as a command line and an environment ask for them: which host this is, where the first one is, and the
//! token that proves that it belongs.
//!
//! Nothing is opened here but the port of the first host, which must be free before anything is written.

use crate::arguments::{Node, Output};
use crate::error::CliError;
use crate::leader::LeadingHost;
use crate::mesh_address::{MeshAddress, PortRange};
use crate::report::Voice;
use crate::slurm::SlurmStep;
use dtrain_protocol::Timeouts;
use dtrain_runtime::Gateway;
use dtrain_transport::quic::{Identity, LinkError, Token, ValidityWindow};
use dtrain_types::{NodeId, counted};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// The port of the first host, where none is given.
pub const DEFAULT_PORT: u16 = 29_400;
/// More hosts are a slip of the finger.
const MOST_NODES: u32 = 65_536;

/// What the hosts of a run know of each other before it begins.
#[derive(Clone, Debug)]
pub struct HostsPlan {
    /// Which host this is.
    pub rank: u32,
    /// How many hosts a run begins with.
    pub nodes: u32,
    /// How many it may ever have.
    pub most: u32,
    /// The first host, as it was written.
    pub shown_master: String,
    /// Its name, or its address as a text, and its port; behind it those of hosts that may take its place.
    pub names: Vec<(String, u16)>,
    /// Its addresses.
    pub masters: Vec<SocketAddr>,
    /// The address of this host to use.
    pub bind: Option<IpAddr>,
    /// The ports of this host for the links between ranks.
    pub ports: Option<PortRange>,
    /// What proves that this host belongs.
    pub identity: Identity,
    /// The host that led before, where this one takes its place.
    pub succeeds: Option<NodeId>,
}

/// The first host, ready to be joined.
pub struct Lead {
    /// Where the others join.
    pub gateway: Gateway,
    /// How many hosts the run begins with.
    pub nodes: u32,
    /// How many it may ever have.
    pub most: u32,
    /// For the links between ranks.
    pub mesh: MeshAddress,
    /// What other hosts are told of it.
    pub leader: LeadingHost,
    /// The host that led before, where this one takes its place.
    pub succeeds: Option<NodeId>,
}

impl HostsPlan {
    /// Understands a command line; none where the run has one host. `find` says where the hosts are that `--master` names, of which the
    /// first leads.
    ///
    /// *Blocks* as long as that does. *Errors*: its, and of kind usage.
    pub fn new(
        arguments: &Node,
        find: impl FnOnce(&[(String, u16)]) -> Result<Vec<SocketAddr>, CliError>,
    ) -> Result<Option<Self>, CliError> {
        let (nodes, most) = nodes(arguments)?;
        let rank = rank(arguments, most)?;
        if most == 1 {
            return Ok(None);
        }
        let names = masters(arguments)?;
        // What is wrong with the token is told before anything is waited for.
        let identity = identity()?;
        // The first host listens at its own address, and at no other's.
        let found = find(if rank == 0 { &names[..1] } else { &names })?;
        let shown: Vec<String> = names.iter().map(|(host, port)| shown(host, *port)).collect();
        Ok(Some(Self {
            rank,
            nodes,
            most,
            shown_master: shown.join(","),
            names,
            masters: found,
            bind: arguments.bind,
            ports: arguments.ports,
            identity,
            succeeds: None,
        }))
    }

    /// Whether the ports for the links between ranks are enough for the ranks of this host.
    ///
    /// *Errors*: too few of them are free; of kind usage.
    pub fn check_ports(&self, listen: IpAddr, ranks: u32) -> Result<(), CliError> {
        let Some(range) = self.ports else { return Ok(()) };
        // Held together, and free again when all were tried.
        let free: Vec<UdpSocket> =
            range.ports().filter_map(|port| UdpSocket::bind((listen, port)).ok()).collect();
        if free.len() >= ranks as usize {
            return Ok(());
        }
        let (free, ranks) = (counted(free.len() as u64, "UDP port"), counted(ranks, "rank"));
        let message = format!(
            "{free} of {range} can be had at {listen}, and this host has {ranks}, which want one each"
        );
        Err(CliError::usage(message).hint("give more of them: --ports; or write fewer ranks"))
    }

    /// Opens the port where the others join.
    ///
    /// *Errors*: it is taken, or the address is not this host's, or too few ports for the links of its `ranks`; of kind usage.
    pub fn lead(&self, timeouts: Timeouts, ranks: u32) -> Result<Lead, CliError> {
        let master = self.masters[0];
        let listen = self.bind.unwrap_or(master.ip());
        let open = |port| Gateway::open(SocketAddr::new(listen, port), &self.identity, self.most, timeouts);
        let gateway = match open(master.port()) {
            // Where several hosts have one address the port may be taken; who takes a place over is found by the folder.
            Err(LinkError::Busy { .. }) if self.succeeds.is_some() => open(0),
            opened => opened,
        };
        let gateway = gateway.map_err(|error| match error {
            LinkError::Busy { addr } => CliError::usage(format!("the address {addr} is in use"))
                .hint("stop the other process, or give all hosts another port: --master ADDR:PORT"),
            error => CliError::usage(error.to_string()).hint(format!(
                "the host of rank 0 is the one that --master names; if {} is not an address of this host itself, \
                 say where to listen: --bind 0.0.0.0",
                self.shown_master
            )),
        })?;
        // The ranks of a host that takes a place over have their ports already.
        if self.succeeds.is_none() {
            self.check_ports(listen, ranks)?;
        }
        let reached_at = reached_at(listen, master.ip());
        let mesh = MeshAddress { listen, reached_at, ports: self.ports };
        let leader =
            LeadingHost { host: self.rank, at: SocketAddr::new(reached_at, gateway.local_addr().port()) };
        Ok(Lead { gateway, nodes: self.nodes, most: self.most, mesh, leader, succeeds: self.succeeds })
    }
}

/// Where others reach a host that listens at `listen` and is known as `known`.
#[must_use]
pub fn reached_at(listen: IpAddr, known: IpAddr) -> IpAddr {
    if listen.is_unspecified() { known } else { listen }
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// `2`, or `2..4`: with how many hosts a run begins, and how many it may have.
fn nodes(arguments: &Node) -> Result<(u32, u32), CliError> {
    let slurm = || var("SLURM_NODEID").and_then(|_| var("SLURM_NNODES"));
    let given = arguments.nodes.clone().or_else(|| var("PET_NNODES")).or_else(slurm);
    let text = given.unwrap_or_else(|| "1".to_owned());
    let wrong = || {
        CliError::usage(format!("--nodes {text}: expected a whole number from 1 to {MOST_NODES}, or N..MAX"))
            .hint("--nodes 2 begins with two hosts; --nodes 2..4 lets two more join later")
    };
    // torchrun writes 2:4.
    let (least, most) = text.split_once("..").or_else(|| text.split_once(':')).unwrap_or((&text, &text));
    let read = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let (least, most) = (read(least)?, read(most)?);
    if least == 0 || most < least || most > MOST_NODES {
        return Err(wrong());
    }
    Ok((least, most))
}

fn rank(arguments: &Node, most: u32) -> Result<u32, CliError> {
    let named = |name: &str| -> Result<Option<u32>, CliError> {
        let Some(text) = var(name) else { return Ok(None) };
        let wrong = |_| CliError::usage(format!("{name} is {text:?}: expected a whole number"));
        text.parse().map(Some).map_err(wrong)
    };
    let rank = match arguments.rank {
        Some(rank) => Some(rank),
        // Of torchrun's launchers, of Slurm, and of an Indexed Job of Kubernetes.
        None => named("PET_NODE_RANK")?.or(named("SLURM_NODEID")?).or(named("JOB_COMPLETION_INDEX")?),
    };
    match rank {
        Some(rank) if rank < most => Ok(rank),
        Some(rank) => Err(CliError::usage(format!("--rank {rank} is out of range for {most} hosts"))
            .hint(format!("it counts from 0 to {}; --nodes says how many there are", most - 1))),
        None if most == 1 => Ok(0),
        None => Err(CliError::usage(format!("which of the {most} hosts is this"))
            .hint("--rank 0 on the host that --master names, --rank 1 on the next, and so on")),
    }
}

/// Host and port of each `ADDR[:PORT]` between commas; an IPv6 address with a port stands in brackets. There is one at least.
///
/// *Errors*: of kind usage.
pub(crate) fn masters(arguments: &Node) -> Result<Vec<(String, u16)>, CliError> {
    let Some(text) =
        arguments.master.clone().or_else(|| var("PET_MASTER_ADDR")).or_else(|| var("MASTER_ADDR"))
    else {
        if let Some(step) = SlurmStep::here() {
            return Ok(vec![(step.master()?, step.port(DEFAULT_PORT))]);
        }
        return Err(CliError::usage("where is the first host")
            .hint("--master ADDR[:PORT] on every host: the address of the host of rank 0"));
    };
    let from_environment = || {
        let named = ["PET_MASTER_PORT", "MASTER_PORT"].into_iter().find_map(|name| Some((name, var(name)?)));
        match named.filter(|_| arguments.master.is_none()) {
            Some((name, text)) => text
                .parse()
                .map_err(|_| CliError::usage(format!("{name} is {text:?}: expected a port from 1 to 65535"))),
            None => Ok(DEFAULT_PORT),
        }
    };
    let masters: Vec<(String, u16)> =
        text.split(',').map(|text| master(text, &from_environment)).collect::<Result<_, _>>()?;
    if masters.iter().any(|(_, port)| *port != masters[0].1) {
        return Err(CliError::usage(format!("--master {text}: whoever leads listens at one port"))
            .hint("write the same port behind each, or none: 29400"));
    }
    Ok(masters)
}

/// One of them.
fn master(text: &str, usual_port: &dyn Fn() -> Result<u16, CliError>) -> Result<(String, u16), CliError> {
    let wrong = |port: &str| {
        CliError::usage(format!("--master {text}: {port:?} is no port"))
            .hint("write --master ADDR:PORT, such as 10.0.0.1:29400")
    };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(|| wrong(rest))?)),
        None if text.parse::<IpAddr>().is_ok() => (text, None),
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(CliError::usage(format!("--master {text}: a host is missing"))
            .hint("write --master ADDR[:PORT], and where others may lead after it, --master ADDR,ADDR"));
    }
    let port = match port {
        Some(text) => text.parse().map_err(|_| wrong(text))?,
        None => usual_port()?,
    };
    if port == 0 {
        return Err(wrong("0"));
    }
    Ok((host.to_owned(), port))
}

fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// How often a name that is not known is looked up.
const LOOK_UP: Duration = Duration::from_millis(500);

/// Where hosts of these names are. Names that nobody knows yet are looked up again for as long as `patience` says: where hosts are started by
/// a cluster, their names come when they do.
///
/// *Blocks* for that long. *Errors*: none of them is known by then; of kind usage.
pub fn await_names(
    names: &[(String, u16)],
    output: Output,
    patience: impl FnOnce() -> Result<Duration, CliError>,
) -> Result<Vec<SocketAddr>, CliError> {
    let begun = Instant::now();
    if let Ok(found) = resolve_all(names) {
        return Ok(found);
    }
    let limit = patience()?;
    let which = names.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>().join(", ");
    Voice::of(output).say(&format!(
        "  node     {which} has no address yet; it is looked up for {limit:.0?} (join_timeout)"
    ));
    loop {
        match resolve_all(names) {
            Err(unknown) if begun.elapsed() + LOOK_UP >= limit => return Err(unknown),
            Err(_) => std::thread::sleep(LOOK_UP),
            found => return found,
        }
    }
}

pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, CliError> {
    let unknown = |what: String| {
        CliError::usage(format!("cannot find the address of {host}"))
            .cause(what)
            .hint("--master takes a host name that this host can resolve, or an IPv4 or IPv6 address")
    };
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    if found.is_empty() { Err(unknown("the name has no address".into())) } else { Ok(found) }
}

/// The addresses of all of them that are known.
///
/// *Errors*: none is.
pub(crate) fn resolve_all(names: &[(String, u16)]) -> Result<Vec<SocketAddr>, CliError> {
    let (mut all, mut unknown) = (Vec::new(), None);
    for (host, port) in names {
        match resolve(host, *port) {
            Ok(found) => all.extend(found),
            Err(error) => unknown = unknown.or(Some(error)),
        }
    }
    unknown.filter(|_| all.is_empty()).map_or(Ok(all), Err)
}

/// The identity that the token in the environment gives.
///
/// *Errors*: there is none, or it is no token; of kind usage.
pub fn identity() -> Result<Identity, CliError> {
    let window = ValidityWindow::around(SystemTime::now());
    Identity::from_token(&token()?, window).map_err(|error| CliError::failed(error.to_string()))
}

/// How long the other hosts of a job of Slurm wait for its token: tasks may start minutes apart.
const SLURM_PATIENCE: Duration = Duration::from_secs(300);

/// The job of Slurm whose tasks share a token by themselves, and their home folder, where nobody has given one.
fn of_slurm() -> Option<(SlurmStep, PathBuf)> {
    let given = var("DTRAIN_TOKEN_FILE").or_else(|| var("DTRAIN_TOKEN"));
    if given.is_some() {
        return None;
    }
    Some((SlurmStep::here()?, PathBuf::from(var("HOME")?)))
}

/// Nobody needs the token of this job any more, if it had one of its own.
pub fn forget_token() {
    if let Some((step, home)) = of_slurm() {
        step.forget_token(&home);
    }
}

fn token() -> Result<Token, CliError> {
    let (place, text) = match (var("DTRAIN_TOKEN_FILE"), var("DTRAIN_TOKEN")) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(&file).map_err(|error| {
                CliError::usage(format!("cannot read the token in {file}"))
                    .because(&error)
                    .hint("DTRAIN_TOKEN_FILE names a file that `dtrain token new -o FILE` made")
            })?;
            (format!("the token in {file}"), text)
        }
        (None, Some(text)) => ("DTRAIN_TOKEN".to_owned(), text),
        (None, None) if let Some((step, home)) = of_slurm() => {
            let text = match var("SLURM_NODEID").as_deref() {
                Some("0") => step.draw_token(&home)?,
                _ => step.await_token(&home, SLURM_PATIENCE)?,
            };
            ("the token of this job".to_owned(), text)
        }
        (None, None) => {
            return Err(CliError::usage("hosts need a token that they share, and there is none").hint(
                "make one with `dtrain token new -o FILE`, copy it to every host, and set DTRAIN_TOKEN_FILE=FILE there",
            ));
        }
    };
    text.parse().map_err(|error: dtrain_transport::quic::TokenError| {
        let words = error.to_string();
        let (what, _) = words.split_once('\n').unwrap_or((&words, ""));
        CliError::usage(format!("{place}: {what}")).hint("`dtrain token new` makes one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(nodes: &str, master: &str) -> Node {
        Node { nodes: Some(nodes.into()), master: Some(master.into()), ..Node::default() }
    }

    #[test]
    fn a_number_of_hosts_may_be_a_range() {
        let read = |text| nodes(&node(text, "")).ok();
        assert_eq!(read("2"), Some((2, 2)));
        assert_eq!(read("2..4"), Some((2, 4)));
        assert_eq!(read("2:4"), Some((2, 4)));
        for wrong in ["0", "4..2", "two", "", "1..", "-1", "70000"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_master_is_a_name_or_an_address_with_or_without_a_port() {
        let read = |text| {
            let names = masters(&node("2", text)).ok()?;
            Some(names.iter().map(|(host, port)| shown(host, *port)).collect::<Vec<_>>().join(","))
        };
        assert_eq!(read("10.0.0.1").as_deref(), Some("10.0.0.1:29400"));
        assert_eq!(read("head:1234").as_deref(), Some("head:1234"));
        assert_eq!(read("fd00::1").as_deref(), Some("[fd00::1]:29400"));
        assert_eq!(read("[fd00::1]:80").as_deref(), Some("[fd00::1]:80"));
        assert_eq!(read("a:80,b:80,[fd00::1]:80").as_deref(), Some("a:80,b:80,[fd00::1]:80"));
        assert_eq!(read("a,b").as_deref(), Some("a:29400,b:29400"));
        assert_eq!(read("[fd00::1]").as_deref(), Some("[fd00::1]:29400"));
        for wrong in ["", "a,", ",b", "a:1,b", "head:", "head:0", "head:port", "head:70000", "[fd00::1]80"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
