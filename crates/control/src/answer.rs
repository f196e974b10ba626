//! Error responses, and extraction of request bodies and names.

use axum::{
    Json,
    extract::{
        FromRequest, FromRequestParts, Path, Query, Request,
        rejection::{JsonRejection, PathRejection},
    },
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use forebay_api::{ErrorBody, ErrorKind, Problem};
use serde::{Deserialize, de::DeserializeOwned};

#[derive(Debug)]
pub(crate) struct ErrorResponse(pub(crate) Problem);

impl From<Problem> for ErrorResponse {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.kind.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody { error: self.0 })).into_response()
    }
}

/// Whether a request may disconnect clients.
pub(crate) struct Force(pub(crate) bool);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceQuery {
    #[serde(default)]
    force: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let Query(query) =
            Query::<ForceQuery>::from_request_parts(parts, state).await.map_err(|rejection| {
                let remedy = "see the description at /v1/openapi.json";
                ErrorResponse(Problem::new(ErrorKind::BadRequest, rejection.body_text(), remedy))
            })?;
        Ok(Self(query.force))
    }
}

/// The JSON body of a request.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorResponse> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(refused_body(&rejection)),
        }
    }
}

fn refused_body(rejection: &JsonRejection) -> ErrorResponse {
    let remedy = "see the description at /v1/openapi.json";
    let problem = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            ErrorKind::TooLarge,
            "the request is too large",
            "send less: no name, backing or description is that long",
        ),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(
            ErrorKind::BadRequest,
            "the content type of the request is not JSON",
            "send it with content-type: application/json",
        ),
        _ => Problem::new(ErrorKind::BadRequest, rejection.body_text(), remedy),
    };
    ErrorResponse(problem)
}

/// The name of a volume in the path of a request.
pub(crate) struct VolumeName(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for VolumeName {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let name: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        match name {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(ErrorResponse(Problem::new(
                ErrorKind::BadRequest,
                format!("the path has no valid volume name: {}", rejection.body_text()),
                "send the name as UTF-8, escaped for a path",
            ))),
        }
    }
}

/// The number of a client in the path of a request.
pub(crate) struct ClientNumber(pub(crate) u64);

impl<S: Send + Sync> FromRequestParts<S> for ClientNumber {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let id: Result<Path<u64>, PathRejection> = Path::from_request_parts(parts, state).await;
        match id {
            Ok(Path(id)) => Ok(Self(id)),
            Err(rejection) => Err(ErrorResponse(Problem::new(
                ErrorKind::BadRequest,
                format!("the path has no number of a client: {}", rejection.body_text()),
                "list the clients to see their numbers",
            ))),
        }
    }
}

/// The query `fine=true` or `fine=false`, which is the default.
pub(crate) struct Fine(pub(crate) bool);

impl<S: Send + Sync> FromRequestParts<S> for Fine {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        match parts.uri.query() {
            None | Some("" | "fine=false") => Ok(Self(false)),
            Some("fine=true") => Ok(Self(true)),
            Some(query) => Err(ErrorResponse(Problem::new(
                ErrorKind::BadRequest,
                format!("the query '{query}' is not known here"),
                "send fine=true, or no query",
            ))),
        }
    }
}
