/** Puts the page that the address names on the screen. */
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { ComparePage } from "./pages/compare";
import { EpisodePage } from "./pages/episode";
import { EpisodesPage } from "./pages/episodes";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { TaskPage } from "./pages/task";
import { Shell } from "./parts/shell";
import { routeOf } from "./logic/routes";
import { Link, place } from "./router";
import "./styles/base.css";
import "./styles/charts.css";
import "./styles/lists.css";
import "./styles/viewer.css";

function App() {
  const route = routeOf(place.value.path);
  switch (route.page) {
    case "runs":
      return <RunsPage />;
    case "run":
      return <RunPage key={route.run} id={route.run} />;
    case "compare":
      return <ComparePage />;
    case "episodes":
      return <EpisodesPage key={route.run} id={route.run} />;
    case "episode":
      return <EpisodePage key={route.run} id={route.run} step={route.step} task={route.task} member={route.member} />;
    case "task":
      return <TaskPage key={`${route.run} ${route.task}`} id={route.run} task={route.task} />;
    case "nowhere":
      return (
        <Shell crumbs={[{ label: "Runs", to: "/" }, { label: "Not found" }]} title="Not found">
          <div class="problem">
            <h1>This page does not exist</h1>
            <p><Link to="/">Go to the runs</Link></p>
          </div>
        </Shell>
      );
  }
}

render(<App />, document.getElementById("app")!);
