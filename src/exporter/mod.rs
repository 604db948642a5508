//! `gpumon exporter`'s server: the latest readings over HTTP, in OpenMetrics or Prometheus text.
//!
//! Rule: a scrape copies what the sampling threads left and never waits for the driver. One current-thread runtime; its
//! only shared state is read-only.
//! Cases: `/metrics` in OpenMetrics where the client accepts it, else in Prometheus text 0.0.4; `/healthz` and `/` say
//! that the process lives, whatever its GPUs do. The end waits [`GRACE`] for open connections, then cuts them.
//! Not done here: TLS, authentication, limits on clients; the default address is for this machine alone.
//! Source: OpenMetrics 1.0 and the Prometheus exposition formats, as `prometheus-client` writes them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crossbeam_channel::Receiver;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;

use crate::signals::Signal;

mod metrics;

pub use metrics::{Gpu, Shown};

/// How long the end waits for connections.
const GRACE: Duration = Duration::from_millis(500);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers until a signal comes.
pub fn serve(listener: TcpListener, shown: Shown, signals: Receiver<Signal>) -> Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(shown));
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(async || "ok\n"))
        .route("/", get(async || "gpumon exporter; see /metrics\n"))
        .with_state(Arc::new(registry));
    let (told, end) = oneshot::channel::<()>();
    std::thread::Builder::new().name("end".into()).spawn(move || {
        let _ = signals.recv();
        drop(told);
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (cut, cut_now) = oneshot::channel::<()>();
        let ended = async move {
            let _ = end.await;
            drop(cut);
        };
        let late = async move {
            let _ = cut_now.await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            served = async { axum::serve(listener, router).with_graceful_shutdown(ended).await } => served,
            () = late => Ok(()),
        }
    })
    .context("the exporter cannot serve")
}

async fn scrape(State(registry): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let open_metrics = accepted.flat_map(|value| value.split(',')).any(is_open_metrics);
    let mut body = String::new();
    let (kind, written) = if open_metrics {
        (OPEN_METRICS, text::encode(&mut body, &registry))
    } else {
        (PROMETHEUS, prometheus_text::encode(&mut body, &registry))
    };
    match written {
        Ok(()) => ([(header::CONTENT_TYPE, kind)], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether one of the media types that a client accepts is OpenMetrics text, and not refused (`q=0`).
fn is_open_metrics(media: &str) -> bool {
    let mut parts = media.split(';').map(str::trim);
    let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
    named && !parts.any(|p| p.strip_prefix("q=").and_then(|q| q.parse::<f64>().ok()) == Some(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_given_to_those_who_accept_it() {
        assert!(is_open_metrics(" application/openmetrics-text;version=1.0.0;q=0.6"));
        for other in ["text/plain;version=0.0.4", "*/*", "application/openmetrics-text;q=0", ""] {
            assert!(!is_open_metrics(other), "{other}");
        }
    }
}
