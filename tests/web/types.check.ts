/** The types that an app gets are those of the code: this file compiles, or they have drifted. */
import type * as elementCode from "../../web/client/job-element.js";
import type * as code from "../../web/client/milepost.js";
import type * as reactCode from "../../web/client/react.js";
import type * as elementTypes from "../../web/client/types-element.js";
import type * as reactTypes from "../../web/client/types-react.js";
import type * as types from "../../web/client/types.js";

type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;
const same = <A, B>(_: Same<A, B>) => {};

same<keyof typeof code, keyof typeof types>(true);
same<typeof code, Pick<typeof types, keyof typeof types>>(true);
same<typeof reactCode, Pick<typeof reactTypes, keyof typeof reactTypes>>(true);
same<keyof typeof elementCode, keyof typeof elementTypes>(true);
declare const element: elementCode.MilepostJobElement;
element satisfies elementTypes.MilepostJobElement;
