//! What several hosts need: a free port, a name that others can use, a way to the first host.

use super::check::{Check, within};
use crate::arguments::Node;
use crate::error::CliError;
use crate::hosts::{self, DEFAULT_PORT};
use dtrain_types::counted;
use serde_json::json;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// How long a name service may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a host may take to say that nobody listens.
const ECHO: Duration = Duration::from_millis(500);

pub(super) fn checks(master: Option<&str>) -> Vec<Check> {
    let mut checks = vec![port(), own_name()];
    checks.extend(master.map(|text| first_host(text).unwrap_or_else(|error| refused(&error))));
    checks
}

fn port() -> Check {
    let details = json!({"port": DEFAULT_PORT, "protocol": "udp"});
    match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)) {
        Ok(_) => Check::ok("port", format!("{DEFAULT_PORT} (UDP) is free")),
        Err(error) => Check::warn("port", format!("{DEFAULT_PORT} (UDP): {error}"))
            .hint("only `dtrain node` opens it, on the first host; another one: --master ADDR:PORT"),
    }
    .details(details)
}

fn own_name() -> Check {
    let name = dtrain_telemetry::hostname();
    let asked = name.clone();
    let resolved = within(PATIENCE, move || (asked, 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    let instead = "for several hosts give an address that the others reach: --master 10.0.0.1";
    let (check, addresses) = match resolved {
        None => {
            let found = format!("{name}: the name service did not answer in {} s", PATIENCE.as_secs());
            (Check::warn("host name", found).hint(instead), Vec::new())
        }
        Some(Err(error)) => {
            (Check::warn("host name", format!("{name} has no address: {error}")).hint(instead), Vec::new())
        }
        Some(Ok(found)) => {
            let mut shown: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
            shown.sort();
            shown.dedup();
            let check = Check::ok("host name", format!("{name} is {}", shown.join(", ")));
            // Debian gives a host the name 127.0.1.1 in its own table.
            match found.iter().all(|address| address.ip().is_loopback()) {
                true => (check.hint(format!("that leads nowhere from elsewhere; {instead}")), shown),
                false => (check, shown),
            }
        }
    };
    check.details(json!({"name": name, "addresses": addresses}))
}

fn refused(error: &CliError) -> Check {
    Check::missing("master", error.to_string())
        .hint("--master takes a host name or an address, and a port: 10.0.0.1:29400")
}

/// Which address of this host leads to the first one, and whether its system says that nobody listens there.
fn first_host(text: &str) -> Result<Check, CliError> {
    let names = hosts::masters(&Node { master: Some(text.to_owned()), ..Node::default() })?;
    let (host, port) = names[0].clone();
    let resolved = within(PATIENCE, move || hosts::resolve(&host, port));
    let Some(addresses) = resolved.transpose()? else {
        let found = format!("{text}: the name service did not answer in {} s", PATIENCE.as_secs());
        return Ok(Check::missing("master", found).hint("give its address instead of its name"));
    };
    let master = addresses[0];
    let details = json!({"addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>()});
    let check = match ask(master) {
        Err(error) => Check::missing("master", format!("{master}: {error}")).hint("there is no way from here to this address"),
        Ok((own, true)) => Check::warn("master", format!("{master} is reached from {own}; nobody listens there"))
            .hint("that is so until `dtrain node --rank 0` runs; if it does run, look at its --master and --bind"),
        Ok((own, false)) => Check::ok(
            "master",
            format!("{master} is reached from {own}, {}", counted(addresses.len(), "address")),
        )
        .hint("it does not say that nobody listens: a run may be there, or a firewall that drops what it does not know"),
    };
    Ok(check.details(details))
}

/// The own address that leads to `master`, and whether its system answered that nobody listens at that port.
fn ask(master: SocketAddr) -> std::io::Result<(String, bool)> {
    let any: SocketAddr = match master {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(master)?;
    let own = socket.local_addr()?.ip().to_string();
    socket.set_read_timeout(Some(ECHO))?;
    // One byte is no datagram of ours: who listens drops it. Who does not answers with ICMP, which is an error here.
    socket.send(&[0])?;
    let refused = socket.recv(&mut [0; 8]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    Ok((own, refused))
}
