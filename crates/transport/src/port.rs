//! A port that is told before anybody listens there: for a program's own rendezvous, or for one that takes another's place.
//!
//! It is looked for outside the range from which the kernel gives ports to outgoing connections, and to whoever asks for any: inside,
//! somebody else could get it meanwhile. Nobody holds it until it is bound.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

/// Ports below are for services that have a number of their own.
const LOWEST: u16 = 10_000;
/// Tries before the kernel is asked for any port.
const TRIES: u32 = 64;

/// A port on which nobody listens by TCP or UDP, other than `last`.
///
/// *Errors*: of the system; the machine has no free port.
pub fn free_port(last: Option<u16>) -> io::Result<u16> {
    let (low, high) = outside(ephemeral());
    let width = u64::from(high - low) + 1;
    for _ in 0..TRIES {
        let port = low + u16::try_from(random()? % width).expect("smaller than a width of 16 bits");
        if Some(port) != last && is_free(port) {
            return Ok(port);
        }
    }
    bound(0, TcpListener::bind)?.local_addr().map(|address| address.port())
}

/// A number from the system.
fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

/// The range that outgoing connections get their ports from.
fn ephemeral() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(low), Some(high)) => (low, high),
        _ => (32_768, 60_999),
    }
}

/// The larger range beside the ephemeral one; all ports where it leaves none.
fn outside((low, high): (u16, u16)) -> (u16, u16) {
    let below = (LOWEST, low.saturating_sub(1));
    let above = (high.saturating_add(1).max(LOWEST), u16::MAX);
    let width = |(low, high): (u16, u16)| high.saturating_sub(low);
    let widest = if width(below) >= width(above) { below } else { above };
    if width(widest) < 1_000 { (LOWEST, u16::MAX) } else { widest }
}

fn is_free(port: u16) -> bool {
    bound(port, TcpListener::bind).is_ok() && bound(port, UdpSocket::bind).is_ok()
}

/// Bound on every address of both families, or on those of one where there is only one.
fn bound<T>(port: u16, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    bind((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => bind((Ipv4Addr::UNSPECIFIED, port).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_free_and_outside_the_range_of_outgoing_connections() {
        let mut last = None;
        for _ in 0..20 {
            let port = free_port(last).unwrap();
            let (low, high) = ephemeral();
            assert!(!(low..=high).contains(&port) || outside((low, high)).0 == LOWEST, "{port}");
            assert_ne!(Some(port), last);
            let taken = bound(port, TcpListener::bind).unwrap();
            assert!(!is_free(port), "one that is taken is seen");
            drop(taken);
            let taken = bound(port, UdpSocket::bind).unwrap();
            assert!(!is_free(port), "by UDP too");
            drop(taken);
            last = Some(port);
        }
    }

    #[test]
    fn the_larger_side_of_the_range_is_taken() {
        assert_eq!(outside((32_768, 60_999)), (LOWEST, 32_767));
        assert_eq!(outside((9_000, 30_000)), (30_001, u16::MAX));
        assert_eq!(outside((1_024, 65_535)), (LOWEST, u16::MAX), "no port is outside: all are as good");
    }
}
