//! Where `--metrics` serves, and to whom.

pub(crate) use stallscope_collector::metrics_address as address;

use stallscope_collector::{Metrics, Token};
use std::net::SocketAddr;
use std::path::Path;

/// What `--metrics` and `--metrics-token` ask for. `render`: figures as OpenMetrics.
pub(crate) fn served<T>(
    address: Option<SocketAddr>,
    token: Option<&Path>,
    render: fn(&T) -> String,
) -> anyhow::Result<Option<Metrics<T>>> {
    let token = token.map(Token::in_file).transpose()?;
    Ok(address.map(|address| Metrics { address, render, token }))
}
