//! The web pages and their parts, embedded in the binary.

use axum::extract::{Path, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::extract::is_not_modified;
use super::{Api, ApiResult};

#[derive(RustEmbed)]
#[folder = "web/app/"]
struct App;

#[derive(RustEmbed)]
#[folder = "web/client/"]
struct Client;

/// Everything comes from here, and no text of a job can become script or style.
const CSP: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'";

/// The client module under its short name. It has its parts beside it, so the name only points there; relative, so that
/// it holds under any base path.
const CLIENT: &str = "export * from \"./assets/client/milepost.js\";\n";

/// The page, for the list and for one job alike.
pub(super) async fn get_page(State(api): State<Api>, headers: HeaderMap) -> ApiResult {
    let file = App::get("index.html").ok_or_else(ApiError::not_found)?;
    let page = String::from_utf8_lossy(&file.data).replace("{{base}}", &api.settings.base_path);
    let mut response = revalidated("text/html; charset=utf-8", &headers, page.into_bytes());
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, CSP.parse().expect("a policy is visible ASCII"));
    Ok(response)
}

/// A part of the page.
pub(super) async fn get_asset(Path(path): Path<String>, headers: HeaderMap) -> ApiResult {
    let file = match path.split_once('/') {
        Some(("app", name)) => App::get(name),
        Some(("client", name)) => Client::get(name),
        Some(_) | None => None,
    };
    let file = file.ok_or_else(ApiError::not_found)?;
    let media_type = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some(_) | None => "application/octet-stream",
    };
    Ok(revalidated(media_type, &headers, file.data.into_owned()))
}

/// The client module.
pub(super) async fn get_client(headers: HeaderMap) -> Response {
    revalidated("text/javascript; charset=utf-8", &headers, CLIENT.as_bytes().to_vec())
}

fn revalidated(media_type: &'static str, headers: &HeaderMap, data: Vec<u8>) -> Response {
    let hash = Sha256::digest(&data);
    let etag = format!("\"{}\"", hash[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let fixed = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    let mut response = match is_not_modified(headers, &etag) {
        true => (StatusCode::NOT_MODIFIED, fixed).into_response(),
        false => (fixed, data).into_response(),
    };
    response.headers_mut().insert(ETAG, etag.parse().expect("hex digits are visible ASCII"));
    response
}
