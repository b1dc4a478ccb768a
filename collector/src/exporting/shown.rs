//! The node's jobs for Prometheus, which asks for them.

use super::{ANSWERS_AGAIN, Trouble};
use crate::metrics::{Metrics, Publisher, Token};
use crate::node_service::Way;
use crate::policy::Export;
use anyhow::Result;
use stallscope_wire::NodeState;
use std::sync::Arc;
use std::time::Duration;

/// How old what is shown may be.
const EVERY: Duration = Duration::from_secs(5);

/// Shows the jobs, as far as the caller may know of them, where `export` says so: from a thread of its own, so that a receiver that
/// does not answer holds nobody up. `is_patient`: an address that is taken may become free.
///
/// # Errors
/// The address or the token can't be had; not where it is patient.
pub(super) fn show(
    export: &Export,
    figures: fn(&NodeState) -> String,
    way: Arc<Way>,
    is_patient: bool,
    say: fn(&str),
) -> Result<()> {
    let Some(address) = export.prometheus else { return Ok(()) };
    let token = export.prometheus_token.clone();
    let begin = move || -> Result<Publisher<NodeState>> {
        let token = token.as_deref().map(Token::in_file).transpose()?;
        Publisher::start(Metrics { address, render: figures, token }.bind()?)
    };
    let mut publisher = None;
    if !is_patient {
        let begun = begin()?;
        say(&begun.whereabouts());
        publisher = Some(begun);
    }
    // What is pushed asks the service, too, and says when it is away.
    let tells_of_service = export.otlp.is_none();
    std::thread::Builder::new().name("figures".into()).spawn(move || {
        let (mut place, mut service) = (Trouble::default(), Trouble::default());
        loop {
            if publisher.is_none() {
                match begin() {
                    Ok(begun) => {
                        say(&begun.whereabouts());
                        publisher = Some(begun);
                    }
                    Err(why) => place.begun(&format!("{why:#}; it is tried again"), say),
                }
            }
            if let Some(publisher) = &publisher {
                match way.state() {
                    Ok(state) => {
                        publisher.publish(state);
                        service.over(ANSWERS_AGAIN, |sentence| {
                            if tells_of_service {
                                say(sentence)
                            }
                        });
                    }
                    Err(why) => {
                        publisher.withdraw();
                        service.begun(&format!("{why:#}"), |why| {
                            if tells_of_service {
                                say(why)
                            }
                        });
                    }
                }
            }
            std::thread::sleep(EVERY);
        }
    })?;
    Ok(())
}
