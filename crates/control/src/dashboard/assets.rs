//! The page, embedded in the program. It contains no data, so loading it needs no token.

use axum::{
    Router,
    http::{HeaderName, header},
    response::IntoResponse,
    routing::get,
};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page: its path, content type and content.
type Asset = (&'static str, &'static str, &'static [u8]);

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../../dashboard/", $name))
    };
}

/// The files of the page.
pub(super) const ASSETS: [Asset; 17] = [
    ("/", HTML, file!("index.html")),
    ("/style.css", CSS, file!("style.css")),
    ("/icon.svg", SVG, file!("icon.svg")),
    ("/main.js", SCRIPT, file!("main.js")),
    ("/api.js", SCRIPT, file!("api.js")),
    ("/model.js", SCRIPT, file!("model.js")),
    ("/format.js", SCRIPT, file!("format.js")),
    ("/dom.js", SCRIPT, file!("dom.js")),
    ("/charts.js", SCRIPT, file!("charts.js")),
    ("/periods.js", SCRIPT, file!("periods.js")),
    ("/control.js", SCRIPT, file!("control.js")),
    ("/overview.js", SCRIPT, file!("overview.js")),
    ("/site.js", SCRIPT, file!("site.js")),
    ("/volume.js", SCRIPT, file!("volume.js")),
    ("/vendor/uPlot.esm.js", SCRIPT, file!("vendor/uPlot.esm.js")),
    ("/vendor/uPlot.min.css", CSS, file!("vendor/uPlot.min.css")),
    ("/vendor/LICENSE", TEXT, file!("vendor/LICENSE")),
];

/// The browser may load the files of this page and ask its API, and nothing else.
pub(super) const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; \
     style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The headers of every answer, API or page.
pub(super) const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // An upgrade of the daemon must not meet scripts of an older one.
    (header::CACHE_CONTROL, "no-store"),
];

pub(super) fn router() -> Router {
    let serve = |(path, kind, content): Asset| {
        let answer =
            move || async move { ([(header::CONTENT_TYPE, kind)], content).into_response() };
        (path, get(answer))
    };
    ASSETS
        .into_iter()
        .map(serve)
        .fold(Router::new(), |router, (path, answer)| router.route(path, answer))
}
