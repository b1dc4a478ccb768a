//! How people name the address at which figures are served.

use std::net::{Ipv4Addr, SocketAddr};

/// A port, which means this machine alone, or an address in full.
///
/// # Errors
/// It is neither, in a sentence that says what to write.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
    match port.parse::<u16>() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| {
            "say a port (9400, for this machine alone) or an address with its port (0.0.0.0:9400, for everybody)"
                .into()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::metrics_address;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        for (text, address_meant) in [
            ("9400", "127.0.0.1:9400"),
            (":9400", "127.0.0.1:9400"),
            ("localhost:9400", "127.0.0.1:9400"),
            ("0", "127.0.0.1:0"),
            ("10.0.0.7:9400", "10.0.0.7:9400"),
            ("0.0.0.0:9400", "0.0.0.0:9400"),
            ("[::1]:9400", "[::1]:9400"),
        ] {
            let address = metrics_address(text).map(|address| address.to_string());
            assert_eq!(address, Ok(address_meant.into()), "{text}");
        }
        for wrong in ["", ":", "70000", "-1", "10.0.0.7", "node7:9400", "::1", "9400/metrics"] {
            assert!(metrics_address(wrong).is_err(), "{wrong}");
        }
    }
}
