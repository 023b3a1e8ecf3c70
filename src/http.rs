//! HTTP, version 1 of the API: takes requests apart, calls one method of the service, writes the answer.
//!
//! [`Gateway::router`] is the table of routes. Handlers read as four steps: extract, call, map, answer. No rule lives here;
//! the one thing that does is the life of a stream (`stream`).

mod access;
mod append;
mod assets;
mod backlog;
mod claims;
mod error;
mod events;
mod extract;
mod feed;
mod jobs;
mod operations;
mod queues;
mod reads;
mod schema;
mod signals;
mod stream;
mod unread;
mod workers;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::VARY;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tracing::error;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use access::Origins;
pub use error::ApiError;
pub use stream::{Live, Topic};
use unread::Unread;

use crate::service::Gateway;

/// How the API behaves.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// A request body, in bytes.
    pub max_body: usize,
    /// A stream is written to at least this often, ± 2/15.
    pub ping: Duration,
    /// A stream lives at most this long, at least three quarters of it.
    pub stream_max_age: Duration,
    /// Streams say goodbye within the first part of this.
    pub drain: Duration,
    /// Streams at a time.
    pub max_streams: usize,
    /// Where the gateway is reached from outside, without a trailing slash.
    pub public_url: Option<String>,
    /// The prefix under which everything is served: empty, or `/progress`.
    pub base_path: String,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            max_body: 2 * 1024 * 1024,
            ping: Duration::from_secs(15),
            stream_max_age: Duration::from_secs(900),
            drain: Duration::from_secs(10),
            max_streams: 10_000,
            public_url: None,
            base_path: String::new(),
        }
    }
}

/// What every handler gets.
#[derive(Clone)]
struct Api {
    gateway: Gateway,
    settings: Arc<HttpSettings>,
    /// One permit per open stream.
    streams: Arc<Semaphore>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Milepost",
        description = "A progress gateway for long-running jobs: post a job, get a URL, see its state first and then every event.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(responses(schema::ProblemResponse))
)]
struct Description;

/// What a server serves: the whole of HTTP behind one call, so that transports need not know what is behind it.
#[derive(Clone)]
pub struct App(Router);

/// The body of an answer.
pub type ResponseBody = Body;

impl App {
    /// The API and the web pages of a gateway.
    pub fn new(gateway: Gateway, settings: HttpSettings) -> Self {
        Self(gateway.router(settings))
    }

    /// Answers a request. An answer that is a live stream carries [`Live`] among its extensions.
    pub async fn answer(&self, request: hyper::Request<hyper::body::Incoming>) -> hyper::Response<ResponseBody> {
        let Ok(response) = self.0.clone().oneshot(request.map(Body::new)).await;
        response
    }
}

impl Gateway {
    /// The API and the web pages, to be nested into another axum app.
    pub fn router(&self, settings: HttpSettings) -> Router {
        let (api, description) = OpenApiRouter::with_openapi(Description::openapi())
            .routes(routes!(jobs::enqueue_job, reads::list_jobs))
            .routes(routes!(jobs::enqueue_batch))
            .routes(routes!(reads::get_job, jobs::delete_job))
            .routes(routes!(events::get_events, append::append_events))
            .routes(routes!(reads::get_output))
            .routes(routes!(reads::get_result))
            .routes(routes!(jobs::cancel_job))
            .routes(routes!(jobs::retry_job))
            .routes(routes!(claims::claim_jobs))
            .routes(routes!(queues::list_queues))
            .routes(routes!(queues::get_queue, queues::set_queue))
            .routes(routes!(queues::pause_queue))
            .routes(routes!(queues::resume_queue))
            .routes(routes!(backlog::purge_queue))
            .routes(routes!(backlog::redrive_queue))
            .routes(routes!(workers::list_workers))
            .routes(routes!(signals::get_signals))
            .routes(routes!(feed::get_feed))
            .routes(routes!(operations::get_livez))
            .routes(routes!(operations::get_readyz))
            .routes(routes!(operations::get_openapi))
            .split_for_parts();
        let origins = Origins::open(settings.public_url.as_deref());
        let base_path = settings.base_path.clone();
        let state = Api {
            gateway: self.clone(),
            streams: Arc::new(Semaphore::new(settings.max_streams)),
            settings: Arc::new(settings),
        };
        let routes = api
            .route("/", get(assets::get_page))
            .route("/jobs/{id}", get(assets::get_page))
            .route("/assets/{*path}", get(assets::get_asset))
            .route("/client.js", get(assets::get_client))
            .fallback(async || ApiError::not_found())
            .method_not_allowed_fallback(async || ApiError::method_not_allowed())
            .layer(axum::Extension(operations::Described::new(&description, &base_path)))
            .with_state(state.clone());
        let routes = match base_path.as_str() {
            "" => routes,
            prefix => Router::new()
                // A nested router answers at the prefix itself, not at the directory it is.
                .route(&format!("{prefix}/"), get(assets::get_page).with_state(state))
                .nest(prefix, routes)
                .fallback(async || ApiError::not_found()),
        };
        routes.layer(from_fn_with_state(Arc::new(origins), access::check)).layer(from_fn(guard))
    }
}

/// Around every request. A bug in one is that request's trouble: a 500 that says nothing from inside. Every answer
/// that may be a stream or not, whoever gives it, says what it depends on. And a client that is still writing sees its answer.
async fn guard(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let wants_stream = extract::accepts_stream(request.headers());
    let unread = Unread::default();
    let request = request.map(|body| unread.lend(body));
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            let request_id = format!("{:016x}", rand::random::<u64>());
            error!(%method, path, request_id, "a handler panicked");
            stream::answer_trouble(ApiError::internal(&request_id), wants_stream)
        }
    };
    if path.ends_with("/events") || path.ends_with("/signals") {
        response.headers_mut().insert(VARY, reads::VARY_ON);
    }
    unread.drop_rest(response.status()).await;
    response
}

/// Paths in answers: `/v1/jobs/{id}` under the base path, or absolute under the public URL.
fn url(settings: &HttpSettings, path: &str) -> String {
    format!("{}{}{path}", settings.public_url.as_deref().unwrap_or_default(), settings.base_path)
}

/// Who acts, while there are no credentials.
const ANYBODY: &str = "anonymous";

type ApiResult = Result<Response, ApiError>;

fn json_response(body: &impl serde::Serialize) -> Response {
    let bytes = serde_json::to_vec(body).expect("our types have string keys only");
    ([(axum::http::header::CONTENT_TYPE, "application/json")], bytes).into_response()
}
